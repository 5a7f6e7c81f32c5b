// Federated training with A = 4 beyond the plain mean, in one process with ranks as threads: with
// each outer optimizer it is bit for bit what independent trainers give whose parameters are
// combined by hand, however each group is sharded; averaged moments too. Over a compressed wire it
// stays near the plain run. Groups are bitwise equal after each round.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/numeric/federated_run.h"
#include "worker/collective/self_comm.h"

namespace fedshard::numeric {
namespace {

using Outer = federation::OuterOptimizerOptions;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kSteps = 12;
constexpr int64_t kEvery = 4;

// One weighted sum per unit, added in the order of the groups.
Tensors WeightedSum(const std::vector<Tensors>& of_groups, const std::vector<double>& weights) {
  Tensors sums;
  for (size_t unit = 0; unit < of_groups[0].size(); ++unit) {
    at::Tensor sum = of_groups[0][unit] * static_cast<float>(weights[0]);
    for (size_t g = 1; g < of_groups.size(); ++g) {
      sum = sum + of_groups[g][unit] * static_cast<float>(weights[g]);
    }
    sums.push_back(sum);
  }
  return sums;
}

// The textbook's step of one tensor from `base` along g = base - mean; m and v are its state.
at::Tensor OuterStep(const Outer& outer, const at::Tensor& base, const at::Tensor& g, at::Tensor& m,
                     at::Tensor& v) {
  if (outer.type == Outer::Type::kAdam) {
    m = outer.beta1 * m + (1 - outer.beta1) * g;
    v = outer.beta2 * v + (1 - outer.beta2) * (g * g);
    return base - outer.learning_rate * (m / (v.sqrt() + outer.eps));
  }
  m = outer.momentum * m + g;
  if (outer.type == Outer::Type::kMomentum) return base - outer.learning_rate * m;
  return base - outer.learning_rate * (g + outer.momentum * m);
}

// Trainers of one rank each, averaged and stepped by hand.
class ByHand {
 public:
  explicit ByHand(const FederatedRun& run) : run_(run) {
    for (size_t g = 0; g < run.weights.size(); ++g) {
      engines_.push_back(std::make_unique<engine::Engine>(TinyEngine(run.sgd, 2), self_, self_));
      engines_.back()->InitializeRandom(kTinySeed);
    }
    for (const at::Tensor& shard : engines_[0]->master_shards()) {
      base_.push_back(shard.clone());
      first_.push_back(at::zeros_like(shard));
      second_.push_back(at::zeros_like(shard));
    }
  }

  Parameters Train() {
    for (int64_t step = 0; step < run_.steps; ++step) {
      for (size_t g = 0; g < engines_.size(); ++g) {
        const int group = static_cast<int>(g);
        engines_[g]->Step({MicroBatch(group, step, 0), MicroBatch(group, step, 1)},
                          run_.learning_rate);
      }
      if ((step + 1) % run_.every == 0) EndRound();
    }
    return Gather(*engines_[0]);
  }

 private:
  void EndRound() {
    const Tensors means = MeanOf([](engine::Engine& engine) { return engine.master_shards(); });
    for (size_t unit = 0; unit < means.size(); ++unit) {
      base_[unit] = run_.averaging.outer.type == Outer::Type::kNone
                        ? means[unit]
                        : OuterStep(run_.averaging.outer, base_[unit], base_[unit] - means[unit],
                                    first_[unit], second_[unit]);
      for (auto& engine : engines_) engine->master_shards()[unit].copy_(base_[unit]);
    }
    if (!run_.average_moments) return;
    for (const auto kind : {engine::StateKind::kFirstMoment, engine::StateKind::kSecondMoment}) {
      const Tensors moments = MeanOf([kind](engine::Engine& engine) { return engine.State(kind); });
      for (auto& engine : engines_) {
        for (size_t unit = 0; unit < moments.size(); ++unit) {
          engine->State(kind)[unit].copy_(moments[unit]);
        }
      }
    }
  }

  template <typename GetFn>
  Tensors MeanOf(GetFn get) {
    std::vector<Tensors> of_groups;
    for (auto& engine : engines_) of_groups.push_back(get(*engine));
    return WeightedSum(of_groups, run_.weights);
  }

  const FederatedRun run_;
  collective::SelfComm self_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  Tensors base_, first_, second_;
};

FederatedRun RunOf(const Mesh& mesh, const Outer& outer) {
  FederatedRun run;
  run.mesh = mesh;
  run.steps = kSteps;
  run.every = kEvery;
  run.weights = mesh.groups == 2 ? std::vector<double>{0.4, 0.6} : std::vector{0.2, 0.3, 0.5};
  run.averaging.outer = outer;
  return run;
}

class OuterTraining : public ::testing::TestWithParam<Outer> {};

TEST_P(OuterTraining, IsTheTextbooksBitForBit) {
  for (const std::vector<Mesh>& meshes :
       {std::vector<Mesh>{{2, 1, 1}, {2, 1, 2}, {2, 2, 1}}, std::vector<Mesh>{{3, 1, 2}}}) {
    const Parameters expected = ByHand(RunOf(meshes[0], GetParam())).Train();
    for (const Mesh& mesh : meshes) ExpectEqualBits(Federated(RunOf(mesh, GetParam())), expected);
    EXPECT_GT(Distance(expected, ByHand(RunOf(meshes[0], {})).Train()), 0.1)
        << "the test does not see the outer optimizer";
  }
}

INSTANTIATE_TEST_SUITE_P(All, OuterTraining,
                         ::testing::Values(Outer{Outer::Type::kMomentum, 0.7, 0.9},
                                           Outer{Outer::Type::kNesterov, 0.7, 0.9},
                                           Outer{Outer::Type::kAdam, 0.01, 0, 0.9, 0.99, 1e-3}));

TEST(OuterTraining, AtRateOneWithoutMomentumIsTheMeanToRounding) {
  const Mesh mesh{2, 1, 2};
  const Parameters mean = Federated(RunOf(mesh, {}));
  const Parameters outer = Federated(RunOf(mesh, {Outer::Type::kMomentum, 1.0, 0.0}));
  const double moved = Distance(mean, ByHand({mesh, 0, kEvery, {0.5, 0.5}}).Train());
  // base - (base - mean): one rounding a round, which AdamW's first steps then amplify.
  EXPECT_LT(Distance(mean, outer), 1e-4 * moved);
}

TEST(OuterTraining, AveragesMoments) {
  FederatedRun run = RunOf({2, 1, 2}, {});
  run.average_moments = true;
  const Parameters expected = ByHand(run).Train();
  for (const Mesh& mesh : {Mesh{2, 1, 2}, Mesh{2, 2, 1}}) {
    run.mesh = mesh;
    ExpectEqualBits(Federated(run), expected);
  }
  run.average_moments = false;
  EXPECT_GT(Distance(expected, ByHand(run).Train()), 1e-3) << "the test does not see moments";
}

TEST(CompressedTraining, StaysNearThePlainRun) {
  for (const Mesh& mesh : {Mesh{2, 1, 2}, Mesh{3, 1, 2}}) {
    for (const Outer& outer : {Outer{}, Outer{Outer::Type::kNesterov, 0.7, 0.9}}) {
      FederatedRun run = RunOf(mesh, outer);
      const Parameters plain = Federated(run);
      const double moved = Distance(plain, ByHand({mesh, 0, kEvery, run.weights}).Train());
      run.averaging.compression = federation::Compression::kBf16;
      const double with_bf16 = Distance(plain, Federated(run)) / moved;
      run.averaging.compression = federation::Compression::kInt8;
      const double with_int8 = Distance(plain, Federated(run)) / moved;
      EXPECT_GT(with_bf16, 0);
      EXPECT_LT(with_bf16, 0.01);
      EXPECT_GT(with_int8, 0);
      EXPECT_LT(with_int8, 0.02);
    }
  }
}

}  // namespace
}  // namespace fedshard::numeric
