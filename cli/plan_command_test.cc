// Proves that `fedshard plan memory` carries every option of a job file to the formula, prints its
// items as a table and as JSON, and refuses files that are no jobs.
#include "cli/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/exit_codes.h"
#include "common/testing/temp_dir.h"

namespace fedshard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStdout;

constexpr char kConfig[] = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 256,
  "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 128})";

v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.mutable_model()->set_config_json(kConfig);
  spec.mutable_data()->set_sequence_length(32);
  spec.mutable_mesh()->set_mode(v1::MESH_MODE_FL_HSDP);
  spec.mutable_mesh()->set_federation_groups(2);
  spec.mutable_mesh()->set_replicas(3);
  spec.mutable_mesh()->set_shards(4);
  spec.mutable_training()->set_micro_batch(5);
  spec.mutable_training()->set_accumulation(6);
  spec.mutable_federation()->set_chunk_bytes(4096);
  return spec;
}

TEST(MemoryOptionsOf, ReadsDefaults) {
  const planner::MemoryOptions options = MemoryOptionsOf(Spec());
  EXPECT_EQ(options.model.hidden_size, 64);
  EXPECT_EQ(options.groups, 2);
  EXPECT_EQ(options.replicas, 3);
  EXPECT_EQ(options.shards, 4);
  EXPECT_EQ(options.sequence_length, 32);
  EXPECT_EQ(options.micro_batch, 5);
  EXPECT_EQ(options.accumulation, 6);
  EXPECT_EQ(options.moments, 2);
  EXPECT_EQ(options.chunk_bytes, 4096);
  EXPECT_FALSE(options.bf16 || options.gather_bf16 || options.reduce_bf16 || options.bf16_moments ||
               options.accumulate_locally || options.outer_base || options.compression ||
               options.checkpoints);
  EXPECT_EQ(options.recompute, planner::Recompute::kNone);
}

TEST(MemoryOptionsOf, ReadsEveryOption) {
  v1::JobSpec spec = Spec();
  v1::TrainingSpec& training = *spec.mutable_training();
  training.set_precision(v1::PRECISION_BF16);
  training.set_reduce_precision(v1::PRECISION_BF16);
  training.set_accumulate(v1::ACCUMULATE_LOCAL);
  training.set_recompute(v1::RECOMPUTE_SELECTIVE);
  training.mutable_optimizer()->set_type(v1::OPTIMIZER_TYPE_SGD);
  training.mutable_optimizer()->set_momentum(0.9);
  training.mutable_optimizer()->set_moments(v1::PRECISION_BF16);
  spec.mutable_federation()->mutable_outer_optimizer()->set_type(v1::OUTER_OPTIMIZER_TYPE_ADAM);
  spec.mutable_federation()->set_compression(v1::COMPRESSION_INT8);
  spec.mutable_checkpoint()->set_directory("/somewhere");
  const planner::MemoryOptions options = MemoryOptionsOf(spec);
  EXPECT_TRUE(options.bf16 && options.gather_bf16 && options.reduce_bf16 && options.bf16_moments);
  EXPECT_TRUE(options.accumulate_locally && options.outer_base && options.compression &&
              options.checkpoints);
  EXPECT_EQ(options.recompute, planner::Recompute::kSelective);
  EXPECT_EQ(options.moments, 1);
  EXPECT_EQ(options.outer_moments, 2);
  training.set_gather_precision(v1::PRECISION_FP32);
  EXPECT_FALSE(MemoryOptionsOf(spec).gather_bf16);
}

TEST(MemoryOptionsOf, NamesWhatIsWrongWithTheModel) {
  v1::JobSpec spec = Spec();
  spec.mutable_model()->set_config_json(R"({"architectures": ["LlamaForCausalLM"]})");
  EXPECT_THROW(MemoryOptionsOf(spec), std::invalid_argument);
}

TEST(PlanMemory, PrintsTheExample) {
  const std::string file =
      std::string(std::getenv("FEDSHARD_SOURCE")) + "/examples/shakespeare/fl-hsdp.yaml";
  CaptureStdout();
  EXPECT_EQ(RunPlanMemory(file, /*json=*/false), kExitDone);
  const std::string table = GetCapturedStdout();
  EXPECT_THAT(table, HasSubstr("parameters"));
  EXPECT_THAT(table, HasSubstr("averaging"));
  EXPECT_THAT(table, HasSubstr("fl+hsdp 2x2x2"));
  CaptureStdout();
  EXPECT_EQ(RunPlanMemory(file, /*json=*/true), kExitDone);
  const auto json = nlohmann::json::parse(GetCapturedStdout());
  int64_t sum = 0;
  for (const auto& item : json["items"]) sum += item["bytes"].get<int64_t>();
  EXPECT_GT(sum, 0);
  EXPECT_EQ(json["total_bytes"], sum);
}

TEST(PlanMemory, RefusesOtherFiles) {
  EXPECT_EQ(RunPlanMemory("/nowhere/job.yaml", false), kExitNotFound);
  testing::TempDir folder;
  const std::string file = folder.path() + "/job.yaml";
  std::ofstream(file) << "name: a\nnonsense: 1\n";
  EXPECT_EQ(RunPlanMemory(file, false), kExitUsage);
}

}  // namespace
}  // namespace fedshard::cli
