// Proves that the binary counter sums in the order of the pairwise tree, for powers of two and
// other counts, and can be used again; the negative control shows that the order is visible in the
// bits.
#include "worker/engine/shard_accumulator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace fedshard::engine {
namespace {

std::vector<at::Tensor> Addends(int64_t count) {
  at::manual_seed(5);
  std::vector<at::Tensor> addends;
  for (int64_t i = 0; i < count; ++i) addends.push_back(at::randn({64}) * (1 + i * 100));
  return addends;
}

// Level by level, an odd one out moves up unchanged.
at::Tensor TreeSum(std::vector<at::Tensor> level) {
  while (level.size() > 1) {
    std::vector<at::Tensor> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return level.front();
}

at::Tensor Accumulate(ShardAccumulator& accumulator, const std::vector<at::Tensor>& addends) {
  accumulator.Reset();
  for (const at::Tensor& addend : addends) {
    accumulator.Next().copy_(addend);
    accumulator.Fold();
  }
  return accumulator.Sum().clone();
}

TEST(ShardAccumulator, SumsAsPairwiseTree) {
  for (int64_t count = 1; count <= 17; ++count) {
    SCOPED_TRACE(count);
    const std::vector<at::Tensor> addends = Addends(count);
    ShardAccumulator accumulator(count, 64, at::kFloat);
    const at::Tensor first = Accumulate(accumulator, addends);
    EXPECT_TRUE(at::equal(first, TreeSum(addends)));
    EXPECT_TRUE(at::equal(first, Accumulate(accumulator, addends))) << "second use";
  }
}

TEST(ShardAccumulator, LinearOrderWouldBeSeen) {
  const std::vector<at::Tensor> addends = Addends(4);
  at::Tensor linear = addends[0].clone();
  for (size_t i = 1; i < addends.size(); ++i) linear = linear + addends[i];
  EXPECT_FALSE(at::equal(linear, TreeSum(addends)));
}

TEST(ShardAccumulator, RefusesTooFewAndTooMany) {
  ShardAccumulator accumulator(2, 64, at::kFloat);
  accumulator.Fold();
  EXPECT_THROW(accumulator.Sum(), c10::Error);
  accumulator.Fold();
  EXPECT_THROW(accumulator.Next(), c10::Error);
}

}  // namespace
}  // namespace fedshard::engine
