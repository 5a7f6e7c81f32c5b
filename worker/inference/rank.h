// One rank of a run: a process that holds a shard of the model. No LibTorch in this header.
#pragma once

#include "worker/inference/task.h"

namespace fedshard::inference {

// Does its part of `task` and returns the exit code. An error goes to standard error as one line.
// The first rank writes what it has to standard output, a JSON object a line:
//   {"parameters": 3445760}                      the model is loaded
//   {"windows": 64}                              evaluation: about so many are done
//   {"loss_sum": 12.5, "tokens": 8192, "seconds": 1.5}   evaluation: the result
//   {"next": [17, -1]}                           generation: the samples' next tokens; -1 = ended
//   {"prompt_seconds": 0.1, "seconds": 2.5}      generation: done
int RunRank(const RankTask& task, int rank);

}  // namespace fedshard::inference
