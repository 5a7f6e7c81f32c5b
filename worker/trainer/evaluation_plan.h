// Which evaluation windows each rank computes: pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "common/mesh.h"

namespace fedshard::trainer {

// Windows of this rank, in order; -1 where it computes a window that does not count, so that all
// ranks of a group make the same number of forward calls. Group f has windows [f*N/F, (f+1)*N/F),
// spread over its ranks in turn.
std::vector<int64_t> EvaluationWindows(const Mesh& mesh, int32_t rank, int64_t windows);

}  // namespace fedshard::trainer
