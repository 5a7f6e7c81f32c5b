// Gradient norm over flat shards with the same bits for every mesh: squares are summed in double
// inside blocks of kBlockElements, and the block sums in the order of the unsharded units.
// Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fedshard::engine {

// Appends the sum of squares of each block of `gradient` [n * kBlockElements] to `sums`.
void AppendBlockSums(const at::Tensor& gradient, std::vector<double>& sums);

// by_rank[s]: the block sums of shard s, unit after unit; unit_blocks[u]: how many of them belong
// to unit u (elements after those are ignored). Returns the norm of the whole gradient.
double GradientNorm(const std::vector<std::vector<double>>& by_rank,
                    const std::vector<int64_t>& unit_blocks);

// Factor that brings a gradient of this norm to at most `clip` (1 when it already is, or when clip
// is 0).
double ClipFactor(double norm, double clip);

}  // namespace fedshard::engine
