// What `fedshard checkpoint diff` prints, and whether two checkpoints hold the same state. Pure.
#pragma once

#include <string>
#include <vector>

#include "worker/checkpoint/compare.h"
#include "worker/checkpoint/manifest.h"

namespace fedshard::cli {

// A table or JSON; `all`: tensors with equal bits too.
std::string ShowDiff(const checkpoint::Manifest& a, const checkpoint::Manifest& b,
                     const std::vector<checkpoint::ParameterDifference>& differences, bool all,
                     bool as_json);

// Equal bits everywhere and equal counters; the job's name and the mesh do not matter.
bool SameState(const checkpoint::Manifest& a, const checkpoint::Manifest& b,
               const std::vector<checkpoint::ParameterDifference>& differences);

}  // namespace fedshard::cli
