// Proves that WireSum adds bf16 parts in fp32, in the order of the collectives' tree, bit for bit,
// for any number of ranks.
#include "worker/engine/wire_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/collective/tree_sum.h"

namespace fedshard::engine {
namespace {

TEST(WireSum, IsTheTreeOfFp32Addends) {
  const int64_t size = 40, largest = 64;
  for (int ranks = 2; ranks <= 9; ++ranks) {
    at::manual_seed(ranks);
    const at::Tensor received = at::randn({ranks * size}).to(at::kBFloat16);
    std::vector<at::Tensor> addends;
    for (int rank = 0; rank < ranks; ++rank) {
      addends.push_back(received.narrow(0, rank * size, size).to(at::kFloat));
    }
    at::Tensor expected = at::empty({size});
    collective::TreeSum(addends, addends.size(), expected);
    WireSum sum(ranks, largest, at::kFloat);
    for (int repeat = 0; repeat < 2; ++repeat) {
      at::Tensor out = at::full({size}, 7.0f);
      sum.Add(received, out);
      EXPECT_TRUE(at::equal(out, expected)) << ranks;
    }
  }
}

}  // namespace
}  // namespace fedshard::engine
