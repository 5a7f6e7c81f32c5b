// The step's options against the plain step: recompute gives the same bits on every mesh; local
// accumulation and gradients that travel in bf16 agree to rounding, keep replicas equal and send
// what they should.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/numeric/training_run.h"

namespace fedshard::numeric {
namespace {

using engine::EngineOptions;
using engine::Recompute;

const Mesh kSingle{1, 1, 1}, kDdp{1, 4, 1}, kFsdp{1, 1, 4}, kHsdp{1, 2, 2}, kFsdp2{1, 1, 2};

EngineOptions WithSgd(EngineOptions options) {
  options.optimizer.type = engine::OptimizerOptions::Type::kSgd;
  options.optimizer.weight_decay = 0;
  return options;
}

TEST(Recomputing, GivesTheSameBitsOnEveryMesh) {
  for (const bool tied : {false, true}) {
    EngineOptions options = TinyOptions(tied);
    const TrainingRun plain = Train(kSingle, options, 3);
    for (const Recompute recompute : {Recompute::kBlock, Recompute::kSelective}) {
      options.recompute = recompute;
      for (const Mesh& mesh : {kSingle, kDdp, kFsdp, kHsdp, kFsdp2}) {
        const TrainingRun run = Train(mesh, options, 3);
        EXPECT_EQ(run.hash, plain.hash) << mesh.replicas << "x" << mesh.shards;
        EXPECT_EQ(run.losses, plain.losses);
        EXPECT_EQ(run.norms, plain.norms);
      }
    }
  }
}

TEST(Recomputing, ReadsTheGatheredWeightsOfItsOwnTime) {
  EngineOptions options = TinyOptions(false);
  const TrainingRun plain = Train(kFsdp2, options, 2);
  options.poison_buffers = true;
  for (const Recompute recompute : {Recompute::kBlock, Recompute::kSelective}) {
    options.recompute = recompute;
    EXPECT_EQ(Train(kFsdp2, options, 2).hash, plain.hash);
  }
}

TEST(LocalAccumulation, AgreesToRoundingAndSendsEachGradientOnce) {
  for (const bool tied : {false, true}) {
    EngineOptions options = WithSgd(TinyOptions(tied));
    options.accumulation = 3;
    const TrainingRun plain = TrainOnTokens(kHsdp, options, 2);
    options.accumulate_locally = true;
    const TrainingRun local = TrainOnTokens(kHsdp, options, 2);
    EXPECT_LT(LargestError(local.parameters, plain.parameters), 1e-6);
    EXPECT_NEAR(local.norms[1], plain.norms[1], 1e-6 * plain.norms[1]);
    // Two of three reduce-scatters of the whole model are saved; the rest is the same.
    EXPECT_EQ(plain.shard_bytes - local.shard_bytes, 2 * 2 * plain.padded_bytes / 2);
    EXPECT_EQ(plain.replica_bytes, local.replica_bytes);
  }
}

TEST(LocalAccumulation, OfTwoMicroBatchesOrOneOrOnOneShardIsThePlainTree) {
  EngineOptions options = TinyOptions(false);
  options.accumulate_locally = true;
  const TrainingRun plain = Train(kSingle, TinyOptions(false), 3);
  // Four micro-batches in all: one on each rank, and four on one without shards.
  EXPECT_EQ(Train(kFsdp, options, 3).hash, plain.hash);
  EXPECT_EQ(Train(kSingle, options, 3).hash, plain.hash);
  EXPECT_EQ(Train(kHsdp, options, 3).hash, plain.hash);
}

TEST(Bf16Reduction, AgreesToBf16AndSendsHalf) {
  for (const Mesh& mesh : {kFsdp2, Mesh{1, 1, 3}, kFsdp, kHsdp}) {
    for (const bool locally : {false, true}) {
      EngineOptions options = WithSgd(TinyOptions(true));
      options.accumulation = 3;
      options.accumulate_locally = locally;
      const TrainingRun plain = TrainOnTokens(mesh, options, 1);
      options.reduce_precision = engine::Precision::kBf16;
      const TrainingRun rounded = TrainOnTokens(mesh, options, 1);
      const double error = LargestError(rounded.updates, plain.updates);
      // An addend is off by 2^-9 of itself at most, and there are no more than six as large as the
      // sum.
      EXPECT_LT(error, 6.0 / 512) << mesh.shards;
      EXPECT_GT(error, 1e-6) << "nothing was rounded";
      const int64_t scatters = locally ? 1 : 3;
      EXPECT_EQ(plain.shard_bytes - rounded.shard_bytes,
                scatters * (mesh.shards - 1) * plain.padded_bytes / mesh.shards / 2);
      EXPECT_EQ(plain.replica_bytes, rounded.replica_bytes);
    }
  }
}

}  // namespace
}  // namespace fedshard::numeric
