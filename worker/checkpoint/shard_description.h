// How an engine's state is named in a checkpoint: flat shards of units as intervals of logical
// parameters, and whether a checkpoint holds a whole model. Pure arithmetic; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model_config.h"
#include "worker/checkpoint/manifest.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::checkpoint {

// One tensor per unit, "KIND.UNIT", of the unit's shard `shard`, in the order of the units; as long
// as the engine's shards, padding included. `dtype`: "F32" or "BF16".
std::vector<FlatTensor> DescribeShard(const engine::ModelLayout& layout, int shard,
                                      const std::string& kind, int32_t group,
                                      const std::string& dtype);

// That `kind` is stored for every parameter of the model, whole and no larger, in each group that
// has it, and for no other parameters. INVALID_ARGUMENT names the parameter: the checkpoint is of
// another model. NOT_FOUND: the kind is not stored.
absl::Status CheckModel(const Manifest& manifest, const engine::ModelLayout& layout,
                        const std::string& kind);
// The same, of the model's shape alone.
absl::Status CheckModel(const Manifest& manifest, const ModelConfig& model,
                        const std::string& kind);

}  // namespace fedshard::checkpoint
