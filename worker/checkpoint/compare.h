// What differs between two checkpoints, parameter by parameter, whatever meshes wrote them.
// Stateless; memory: a block of each and the readers' chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/reader.h"

namespace fedshard::checkpoint {

// Of one parameter of one kind and group.
struct ParameterDifference {
  std::string kind;
  int32_t group = 0;
  std::string parameter;
  int64_t elements_a = 0;  // 0: only in b.
  int64_t elements_b = 0;
  int64_t different = 0;  // Elements whose bits differ; all when the sizes do.
  double max_absolute =
      0;  // Largest |a - b|; infinite when NaN meets a number or the sizes differ.
};

// All parameters of both, in the order of their names within kind and group. Groups that only one
// of them has are listed with the elements of that one. DATA_LOSS: a file is damaged.
absl::StatusOr<std::vector<ParameterDifference>> Compare(const CheckpointReader& a,
                                                         const CheckpointReader& b);

}  // namespace fedshard::checkpoint
