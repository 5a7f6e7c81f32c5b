// Proves what bf16 does to a step: gradients and losses stay near those of fp32, sharding and
// replication still do not change a bit while sums are fp32, what travels in bf16 is half, the
// masters keep bits that bf16 has not, and moments in bf16 train like those in fp32.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/numeric/training_run.h"
#include "worker/collective/fake_comm.h"
#include "worker/collective/self_comm.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::numeric {
namespace {

using engine::Engine;
using engine::EngineOptions;
using engine::Precision;

const Mesh kSingle{1, 1, 1}, kDdp{1, 4, 1}, kFsdp{1, 1, 4}, kHsdp{1, 2, 2}, kFsdp2{1, 1, 2};

EngineOptions Bf16Options(bool tied) {
  EngineOptions options = TinyOptions(tied);
  options.precision = Precision::kBf16;
  options.gather_precision = Precision::kBf16;
  return options;
}

EngineOptions PlainSgd(EngineOptions options) {
  options.optimizer.type = engine::OptimizerOptions::Type::kSgd;
  options.optimizer.weight_decay = 0;
  options.optimizer.clip = 0;
  return options;
}

// |a - b| / |b| over all parameters as one vector.
double Distance(const Parameters& a, const Parameters& b) {
  double error = 0, size = 0;
  for (const auto& [name, value] : a) {
    const at::Tensor exact = b.at(name).to(at::kDouble);
    error += (value.to(at::kDouble) - exact).square().sum().item<double>();
    size += exact.square().sum().item<double>();
  }
  return std::sqrt(error / size);
}

TEST(Bf16, GradientsAreNearThoseOfFp32) {
  for (const bool tied : {false, true}) {
    // With plain SGD the parameters move by the gradient.
    const TrainingRun plain = Train(kSingle, PlainSgd(TinyOptions(tied)), 1);
    const TrainingRun rounded = Train(kSingle, PlainSgd(Bf16Options(tied)), 1);
    // Activations carry 2^-9 of rounding through three layers and back.
    EXPECT_LT(Distance(rounded.updates, plain.updates), 0.02);
    EXPECT_GT(Distance(rounded.updates, plain.updates), 1e-4) << "nothing was rounded";
    EXPECT_NEAR(rounded.losses[0], plain.losses[0], 2e-3 * plain.losses[0]);
    EXPECT_NEAR(rounded.norms[0], plain.norms[0], 5e-3 * plain.norms[0]);
  }
}

TEST(Bf16, LossCurveStaysNearThatOfFp32) {
  const auto curve = [](const EngineOptions& options) {
    collective::SelfComm self;
    Engine engine(options, self, self);
    engine.InitializeRandom(9);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    const at::Tensor tokens = at::randint(options.model.vocab_size,
                                          {2, options.sequence_length + 1}, generator, at::kLong);
    std::vector<double> losses;
    for (int step = 0; step < 30; ++step) losses.push_back(engine.Step({tokens}, 3e-3).loss);
    return losses;
  };
  const std::vector<double> plain = curve(TinyOptions(false));
  EngineOptions options = Bf16Options(false);
  const std::vector<double> rounded = curve(options);
  options.optimizer.moments = Precision::kBf16;
  const std::vector<double> moments_too = curve(options);
  EXPECT_LT(plain.back(), 0.5 * plain.front()) << "nothing was learned";
  for (size_t step = 0; step < plain.size(); ++step) {
    EXPECT_NEAR(rounded[step], plain[step], 0.02 * plain.front()) << step;
    EXPECT_NEAR(moments_too[step], plain[step], 0.03 * plain.front()) << step;
  }
}

TEST(Bf16, EveryMeshGivesTheSameBitsWhileSumsTravelInFp32) {
  for (const bool tied : {false, true}) {
    const EngineOptions options = Bf16Options(tied);
    const TrainingRun single = Train(kSingle, options, 3);
    for (const Mesh& mesh : {kDdp, kFsdp, kHsdp, kFsdp2}) {
      const TrainingRun run = Train(mesh, options, 3);
      EXPECT_EQ(run.hash, single.hash) << mesh.replicas << "x" << mesh.shards;
      EXPECT_EQ(run.losses, single.losses);
      EXPECT_EQ(run.norms, single.norms);
    }
  }
}

TEST(Bf16, RecomputingAndPoisonChangeNothing) {
  EngineOptions options = Bf16Options(false);
  const TrainingRun plain = Train(kFsdp2, options, 2);
  options.poison_buffers = true;
  for (const engine::Recompute recompute :
       {engine::Recompute::kBlock, engine::Recompute::kSelective}) {
    options.recompute = recompute;
    EXPECT_EQ(Train(kFsdp2, options, 2).hash, plain.hash);
    EXPECT_EQ(Train(kSingle, options, 2).hash, plain.hash);
  }
}

TEST(Bf16, RoundedBeforeOrAfterTheGatherIsTheSame) {
  for (const bool tied : {false, true}) {
    EngineOptions options = Bf16Options(tied);
    const TrainingRun early = Train(kFsdp, options, 2);
    options.gather_precision = Precision::kFp32;
    options.poison_buffers = true;
    const TrainingRun late = Train(kFsdp, options, 2);
    EXPECT_EQ(late.hash, early.hash);
    // Two steps; per step every unit is gathered once, all blocks but the last once more.
    EXPECT_GT(late.shard_bytes - early.shard_bytes, 2 * early.padded_bytes * 3 / 4 / 2);
  }
}

TEST(Bf16, AllInBf16TrainsOnEveryMeshWithEqualReplicas) {
  EngineOptions options = Bf16Options(true);
  options.reduce_precision = Precision::kBf16;
  options.optimizer.moments = Precision::kBf16;
  options.recompute = engine::Recompute::kSelective;
  const TrainingRun single = Train(kSingle, options, 3);
  for (const Mesh& mesh : {kFsdp, kHsdp, kFsdp2}) {
    const TrainingRun run = Train(mesh, options, 3);
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(run.losses[step], single.losses[step], 5e-3 * single.losses[step]);
    }
    EXPECT_LT(Distance(run.updates, single.updates), 0.1);
  }
}

TEST(Bf16, MastersKeepTheirBits) {
  collective::FakeMesh fake(kFsdp2);
  collective::RunRanks(2, [&](int rank) {
    collective::MeshComms comms = fake.Connect(rank);
    Engine engine(Bf16Options(false), *comms.shard, *comms.replica);
    engine.InitializeRandom(2);
    const at::Tensor value = engine.GatherParameter("model.layers.1.mlp.down_proj.weight");
    EXPECT_EQ(value.scalar_type(), at::kFloat);
    EXPECT_FALSE(at::equal(value, value.to(at::kBFloat16).to(at::kFloat)));
    EXPECT_EQ(engine.NextTokenLogits(at::arange(5, at::kLong)).scalar_type(), at::kFloat);
    EXPECT_TRUE(std::isfinite(engine.Evaluate(at::ones({1, 9}, at::kLong)).loss_sum));
  });
}

TEST(Bf16Moments, AreWhatTheStateHolds) {
  EngineOptions options = TinyOptions(false);
  options.optimizer.moments = Precision::kBf16;
  collective::SelfComm self;
  Engine engine(options, self, self);
  engine.InitializeRandom(2);
  engine.Step({at::ones({2, options.sequence_length + 1}, at::kLong)}, 1e-2);
  for (const engine::StateKind kind :
       {engine::StateKind::kFirstMoment, engine::StateKind::kSecondMoment}) {
    const at::Tensor block = engine.State(kind)[1];
    EXPECT_EQ(block.scalar_type(), at::kBFloat16);
    EXPECT_GT(block.abs().max().item<float>(), 0);
    engine.Load(kind, [](const std::string&, int64_t, int64_t count, float* out) {
      std::fill_n(out, count, 0.3f);
    });
    EXPECT_EQ(block[0].item<float>(), static_cast<float>(c10::BFloat16(0.3f)));
  }
}

TEST(Bf16Wire, RoundsTheParametersOfAnFp32Step) {
  EngineOptions options = PlainSgd(TinyOptions(true));
  const TrainingRun plain = Train(kHsdp, options, 1);
  options.gather_precision = Precision::kBf16;
  options.poison_buffers = true;
  const TrainingRun rounded = Train(kHsdp, options, 1);
  EXPECT_LT(Distance(rounded.updates, plain.updates), 0.02);
  EXPECT_GT(Distance(rounded.updates, plain.updates), 1e-4) << "nothing was rounded";
  EXPECT_LT(rounded.shard_bytes, plain.shard_bytes);
  EXPECT_EQ(rounded.replica_bytes, plain.replica_bytes);
}

}  // namespace
}  // namespace fedshard::numeric
