// Federated averaging of real training, in one process with ranks as threads: A = 1 with SGD is
// data-parallel training to rounding; A = 4 is bit for bit what F independent trainers give that
// are averaged by hand, with unequal weights too, however each group is sharded; groups are bitwise
// equal after each round.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/numeric/federated_run.h"
#include "worker/collective/self_comm.h"

namespace fedshard::numeric {
namespace {

// The same with plain single-rank engines, averaged by hand in float, in the order of the groups.
Parameters Reference(int64_t steps, int64_t every, const std::vector<double>& weights) {
  collective::SelfComm self;
  std::vector<std::unique_ptr<engine::Engine>> groups;
  for (size_t g = 0; g < weights.size(); ++g) {
    groups.push_back(std::make_unique<engine::Engine>(TinyEngine(false, 2), self, self));
    groups.back()->InitializeRandom(kTinySeed);
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const int group = static_cast<int>(g);
      groups[g]->Step({MicroBatch(group, step, 0), MicroBatch(group, step, 1)}, 1e-2);
    }
    if ((step + 1) % every != 0) continue;
    for (size_t unit = 0; unit < groups[0]->master_shards().size(); ++unit) {
      at::Tensor sum = groups[0]->master_shards()[unit] * static_cast<float>(weights[0]);
      for (size_t g = 1; g < groups.size(); ++g) {
        sum = sum + groups[g]->master_shards()[unit] * static_cast<float>(weights[g]);
      }
      for (auto& group : groups) group->master_shards()[unit].copy_(sum);
    }
  }
  return Gather(*groups[0]);
}

TEST(FederatedTraining, MatchesIndependentTrainersThatAreAveraged) {
  const Parameters expected = Reference(8, 4, {0.5, 0.5});
  for (const Mesh& mesh : {Mesh{2, 1, 1}, Mesh{2, 1, 2}, Mesh{2, 2, 1}}) {
    ExpectEqualBits(Federated({mesh, 8, 4, {0.5, 0.5}}), expected);
  }
}

TEST(FederatedTraining, UnequalWeights) {
  const Parameters expected = Reference(4, 4, {0.25, 0.75});
  ExpectEqualBits(Federated({{2, 1, 2}, 4, 4, {0.25, 0.75}}), expected);
  const Parameters equal = Federated({{2, 1, 2}, 4, 4, {0.5, 0.5}});
  EXPECT_FALSE(at::equal(equal.at("lm_head.weight"), expected.at("lm_head.weight")))
      << "the test does not see weights";
}

TEST(FederatedTraining, ThreeGroups) {
  const Parameters expected = Reference(4, 2, {0.2, 0.3, 0.5});
  ExpectEqualBits(Federated({{3, 1, 2}, 4, 2, {0.2, 0.3, 0.5}}), expected);
}

TEST(FederatedTraining, EveryStepWithSgdIsDataParallel) {
  // Data parallel: one group whose step has the micro-batches of both.
  collective::SelfComm self;
  engine::Engine together(TinyEngine(true, 4), self, self);
  together.InitializeRandom(kTinySeed);
  const Parameters start = Gather(together);
  for (int64_t step = 0; step < 5; ++step) {
    together.Step({MicroBatch(0, step, 0), MicroBatch(0, step, 1), MicroBatch(1, step, 0),
                   MicroBatch(1, step, 1)},
                  0.5);
  }
  const Parameters expected = Gather(together);
  const Parameters actual = Federated({{2, 1, 2}, 5, 1, {0.5, 0.5}, /*sgd=*/true, 0.5});
  double largest = 0, moved = 0;
  for (const auto& [name, value] : expected) {
    largest = std::max(largest, (actual.at(name) - value).abs().max().item<double>());
    moved = std::max(moved, (value - start.at(name)).abs().max().item<double>());
  }
  EXPECT_GT(moved, 1e-2) << "nothing was trained";
  // Five steps, each rounding parameters of size one a few times.
  EXPECT_LT(largest, 5e-6);
}

}  // namespace
}  // namespace fedshard::numeric
