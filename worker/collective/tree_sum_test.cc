// TreeSum adds in the documented order, whichever piece must be kept, and a tree of trees is the
// tree.
#include "worker/collective/tree_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fedshard::collective {
namespace {

std::vector<at::Tensor> Pieces(int count) {
  std::vector<at::Tensor> pieces;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(count);
  // Magnitudes far apart, so that another order gives other bits.
  for (int i = 0; i < count; ++i) {
    pieces.push_back(at::randn({1000}, generator) * std::pow(10.0, i % 5));
  }
  return pieces;
}

std::vector<at::Tensor> Copies(const std::vector<at::Tensor>& pieces) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& piece : pieces) copies.push_back(piece.clone());
  return copies;
}

TEST(TreeSum, AddsNeighboursFirst) {
  for (size_t keep = 0; keep < 4; ++keep) {
    const auto p = Pieces(7);
    at::Tensor out = at::empty({1000});
    TreeSum(Copies(p), keep, out);
    EXPECT_TRUE(at::equal(out, ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + p[6])));
    EXPECT_FALSE(at::equal(out, p[0] + p[1] + p[2] + p[3] + p[4] + p[5] + p[6]))
        << "the test cannot tell orders apart";
  }
}

TEST(TreeSum, KeptPieceIsUnchangedUnlessItIsTheResult) {
  for (int count : {1, 2, 3, 4, 5, 8}) {
    for (int keep = 0; keep < count; ++keep) {
      const auto pieces = Pieces(count);
      auto copies = Copies(pieces);
      at::Tensor out = at::empty({1000}), expected = at::empty({1000});
      TreeSum(copies, keep, out);
      EXPECT_TRUE(at::equal(copies[keep], pieces[keep]));
      copies = Copies(pieces);
      TreeSum(copies, keep, copies[keep]);
      EXPECT_TRUE(at::equal(copies[keep], out)) << count << " " << keep;
    }
  }
}

TEST(TreeSum, ShardThenReplicaIsTheWholeTree) {
  const auto p = Pieces(8);
  at::Tensor whole = at::empty({1000});
  TreeSum(Copies(p), 0, whole);
  std::vector<at::Tensor> halves = {at::empty({1000}), at::empty({1000})};
  for (int half = 0; half < 2; ++half) {
    TreeSum(Copies({p.begin() + 4 * half, p.begin() + 4 * half + 4}), 0, halves[half]);
  }
  at::Tensor of_halves = at::empty({1000});
  TreeSum(halves, 0, of_halves);
  EXPECT_TRUE(at::equal(whole, of_halves));
}

}  // namespace
}  // namespace fedshard::collective
