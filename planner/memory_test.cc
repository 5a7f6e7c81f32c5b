// Proves properties of the memory formula that need no measurement: what shards, what does not, and
// which option adds or takes what. tests/numeric/memory_test.cc measures the sums.
#include "planner/memory.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fedshard::planner {
namespace {

MemoryOptions Options() {
  MemoryOptions o;
  o.model.vocab_size = 4096;
  o.model.hidden_size = 512;
  o.model.intermediate_size = 1408;
  o.model.num_hidden_layers = 8;
  o.model.num_attention_heads = 8;
  o.model.num_key_value_heads = 4;
  o.model.head_dim = 64;
  o.model.max_position_embeddings = 1024;
  o.sequence_length = 512;
  o.micro_batch = 2;
  return o;
}

TEST(PlanMemory, SplitsWhatIsSharded) {
  MemoryOptions options = Options();
  const MemoryPlan whole = PlanMemory(options);
  options.shards = 4;
  const MemoryPlan quarter = PlanMemory(options);
  for (const char* name : {"parameters", "moments", "gradient shards"}) {
    EXPECT_NEAR(quarter.Bytes(name), whole.Bytes(name) / 4, whole.Bytes(name) / 100) << name;
  }
  EXPECT_EQ(whole.Bytes("moments"), 2 * whole.Bytes("parameters"));
  EXPECT_EQ(quarter.Bytes("activations"), whole.Bytes("activations"));
  EXPECT_EQ(whole.Bytes("gather buffers"), 0);
  EXPECT_GT(quarter.Bytes("gather buffers"), 0);
}

TEST(PlanMemory, RecomputeTakesActivationsAway) {
  MemoryOptions options = Options();
  const int64_t none = PlanMemory(options).Bytes("activations");
  options.recompute = Recompute::kSelective;
  const int64_t selective = PlanMemory(options).Bytes("activations");
  options.recompute = Recompute::kBlock;
  const int64_t block = PlanMemory(options).Bytes("activations");
  EXPECT_LT(selective, none * 6 / 10);
  EXPECT_LT(block, selective * 6 / 10);
}

TEST(PlanMemory, Bf16HalvesWhatIsComputedWith) {
  MemoryOptions options = Options();
  options.shards = 2;
  const MemoryPlan fp32 = PlanMemory(options);
  options.bf16 = options.gather_bf16 = options.bf16_moments = true;
  const MemoryPlan bf16 = PlanMemory(options);
  EXPECT_EQ(2 * bf16.Bytes("gather buffers"), fp32.Bytes("gather buffers"));
  EXPECT_EQ(2 * bf16.Bytes("moments"), fp32.Bytes("moments"));
  EXPECT_EQ(2 * bf16.Bytes("logits"), fp32.Bytes("logits"));
  EXPECT_EQ(bf16.Bytes("parameters"), fp32.Bytes("parameters"));
}

TEST(PlanMemory, LocalAccumulationNeedsAWholeGradient) {
  MemoryOptions options = Options();
  options.shards = 4;
  options.accumulation = 8;
  EXPECT_EQ(PlanMemory(options).Bytes("gradient shards"),
            4 * PlanMemory(options).Bytes("parameters"));
  options.accumulate_locally = true;
  const MemoryPlan plan = PlanMemory(options);
  EXPECT_EQ(plan.Bytes("gradient shards"), plan.Bytes("parameters"));
  EXPECT_EQ(plan.Bytes("local gradients"), 4 * plan.Bytes("parameters"));
}

TEST(PlanMemory, AveragingAndCheckpointsComeBetweenSteps) {
  MemoryOptions options = Options();
  const int64_t alone = PlanMemory(options).total();
  options.groups = 2;
  options.outer_moments = 1;
  options.outer_base = true;
  options.checkpoints = true;
  const MemoryPlan plan = PlanMemory(options);
  const int64_t shard = plan.Bytes("parameters");
  EXPECT_EQ(plan.step(), alone);
  EXPECT_EQ(plan.Bytes("averaging"), 2 * shard + options.chunk_bytes);
  EXPECT_EQ(plan.Bytes("outer state"), shard);
  EXPECT_EQ(plan.Bytes("checkpoint copy"), 4 * shard);
  EXPECT_EQ(plan.total(), alone + 7 * shard + options.chunk_bytes);
}

TEST(PlanMemory, RefusesWhatIsNoModel) {
  MemoryOptions options = Options();
  options.model.hidden_size = 0;
  EXPECT_THROW(PlanMemory(options), std::invalid_argument);
}

}  // namespace
}  // namespace fedshard::planner
