// Proves that the norm of the same gradient has the same bits however it is cut into shards and
// padded, agrees with double precision, and that the clip factor does what
// torch.nn.utils.clip_grad_norm_ does.
#include "worker/engine/clip.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "worker/engine/unit_layout.h"

namespace fedshard::engine {
namespace {

double NormWithShards(const std::vector<at::Tensor>& units, int shards) {
  std::vector<std::vector<double>> by_rank(shards);
  std::vector<int64_t> unit_blocks;
  for (const at::Tensor& unit : units) {
    const int64_t multiple = shards * kBlockElements;
    const int64_t padded = (unit.numel() + multiple - 1) / multiple * multiple;
    const at::Tensor flat = at::constant_pad_nd(unit, {0, padded - unit.numel()});
    const int64_t size = padded / shards;
    for (int shard = 0; shard < shards; ++shard) {
      AppendBlockSums(flat.narrow(0, shard * size, size), by_rank[shard]);
    }
    unit_blocks.push_back(size / kBlockElements);
  }
  return GradientNorm(by_rank, unit_blocks);
}

TEST(GradientNorm, SameBitsForEveryShardCount) {
  at::manual_seed(2);
  const std::vector<at::Tensor> units = {at::randn({10'000}), at::randn({50'001}) * 3,
                                         at::randn({4096})};
  double exact = 0;
  for (const at::Tensor& unit : units) exact += unit.to(at::kDouble).square().sum().item<double>();
  const double whole = NormWithShards(units, 1);
  EXPECT_NEAR(whole, std::sqrt(exact), 1e-12 * whole);
  for (int shards : {2, 3, 4, 8}) EXPECT_EQ(NormWithShards(units, shards), whole) << shards;
}

TEST(GradientNorm, ShowsNaN) {
  at::Tensor gradient = at::zeros({kBlockElements});
  gradient[17] = std::nan("");
  std::vector<double> sums;
  AppendBlockSums(gradient, sums);
  EXPECT_TRUE(std::isnan(GradientNorm({sums}, {1})));
}

TEST(ClipFactor, OnlyShrinks) {
  EXPECT_EQ(ClipFactor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(ClipFactor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(ClipFactor(1e9, 0), 1.0);
}

}  // namespace
}  // namespace fedshard::engine
