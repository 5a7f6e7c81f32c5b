// Filling this rank's shards from whatever holds the values of logical parameters. Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

// Writes elements [begin, begin + count) of the logical parameter `parameter` to `out`.
using FillFunction =
    std::function<void(const std::string& parameter, int64_t begin, int64_t count, float* out)>;

// Fills `shards`, one flat tensor per unit, piece by piece with what shard `shard` of the layout
// holds; padding is zeroed. Throws what `fill` throws.
void LoadShards(const ModelLayout& layout, int shard, const FillFunction& fill,
                const std::vector<at::Tensor>& shards);

}  // namespace fedshard::engine
