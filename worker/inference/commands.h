// What fedshard-model does for its user, in the process that starts the ranks. Data goes to
// standard output, warnings and progress to standard error.
#pragma once

#include "absl/status/status.h"
#include "worker/inference/options.h"

namespace fedshard::inference {

// INVALID_ARGUMENT names the option, file or field; NOT_FOUND the path; DATA_LOSS the damage.
absl::Status RunEval(const EvalOptions& options);
absl::Status RunGenerate(const GenerateOptions& options);

}  // namespace fedshard::inference
