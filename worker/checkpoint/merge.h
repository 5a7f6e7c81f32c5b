// Turns a checkpoint of any mesh into an equivalent one in a single file, to be moved elsewhere.
// Stateless; memory: a block, and one chunk each of reader and writer.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/checkpoint/reader.h"

namespace fedshard::checkpoint {

// Writes DIRECTORY/step-NNNNNNNN with mesh (1, 1, 1), one tensor per parameter and kind: the
// parameters, and of state that each group has of its own that of `group`. Returns its path.
// NOT_FOUND: no such group; ALREADY_EXISTS: the folder is there; DATA_LOSS: a damaged source.
absl::StatusOr<std::string> Merge(const CheckpointReader& source, int32_t group,
                                  const std::string& directory);

}  // namespace fedshard::checkpoint
