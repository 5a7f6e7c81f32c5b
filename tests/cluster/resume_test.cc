// Checkpoints of whole jobs with real trainers: resuming gives the bits of a run that was never
// interrupted, on the same mesh and, for the same global batch, on others; damaged checkpoints are
// passed over or refused by name; steps that are not finite are skipped up to their limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/cluster/mini_cluster.h"
#include "tests/cluster/test_job.h"

namespace fedshard::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::vector<std::string> kNodes = {"--nodes", "2", "--slots", "4"};

TestJob Shape(const std::string& name, const std::string& mode, int groups, int replicas,
              int shards) {
  TestJob job = Shaped(name, mode, groups, replicas, shards);
  job.steps = 6;
  job.every_steps = 2;
  return job;
}

class Checkpoints : public ::testing::Test {
 protected:
  static std::string Keys(const std::string& directory, const std::string& resume) {
    return "checkpoint: {directory: " + directory +
           ", every_rounds: 1, keep: 0, resume: " + resume + "}\n";
  }
  json Run(TestJob job, const std::string& directory, const std::string& resume = "latest") {
    job.sections = Keys(directory, resume);
    return LocalRun(folder_.Write(job), kNodes);
  }
  CommandResult Refused(TestJob job, const std::string& directory, const std::string& resume) {
    job.sections = Keys(directory, resume);
    return Fedshard({"local", "run", folder_.Write(job), "--nodes", "2", "--slots", "4"});
  }
  std::string At(const std::string& directory, int step) const {
    char name[32];
    snprintf(name, sizeof name, "/step-%08d", step);
    return folder_.path() + "/" + directory + name;
  }
  // Flips one bit in the middle of some file of a checkpoint.
  static void Damage(const std::string& checkpoint) {
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
      file.seekg(middle);
      const char byte = static_cast<char>(file.get());
      file.seekp(middle);
      file.put(static_cast<char>(byte ^ 1));
      return;
    }
    FAIL() << checkpoint << " has no files";
  }

  JobFolder folder_;
};

struct Case {
  const char* name;
  const char* federation;
  const char* training;
};

class SameMesh : public Checkpoints, public ::testing::WithParamInterface<Case> {};

TEST_P(SameMesh, ResumingIsBitIdentical) {
  TestJob job = Shape("whole", "fl+hsdp", 2, 2, 2);
  job.federation = GetParam().federation;
  job.training = GetParam().training;
  const json whole = Run(job, "whole");
  job.name = "resumed";
  const json resumed = Run(job, "resumed", At("whole", 2));
  EXPECT_EQ(resumed["parameter_hash"], whole["parameter_hash"]);
  EXPECT_EQ(resumed["steps"], 6);
  EXPECT_EQ(resumed["tokens"], whole["tokens"]);
  EXPECT_EQ(resumed["rounds_committed"], 2) << "of its own";
}

INSTANTIATE_TEST_SUITE_P(
    All, SameMesh,
    ::testing::Values(Case{"plain", "", ""},
                      Case{"outer", ", outer_optimizer: {type: nesterov}, compression: int8", ""},
                      Case{"reset", ", optimizer_state: reset, outer_optimizer: {type: adam}", ""},
                      Case{"overlap", ", overlap_steps: 1", ""},
                      Case{"average", ", optimizer_state: average", "  recompute: block\n"}),
    [](const auto& info) { return info.param.name; });

// The same six sequences per step everywhere, so that only the order of sums may differ; with the
// tree over powers of two not even that.
TEST_F(Checkpoints, AnyMeshGoesOnFromAnyOther) {
  const auto shape = [](const std::string& name, const std::string& mode, int groups, int replicas,
                        int shards, int batch) {
    TestJob job = Shape(name, mode, groups, replicas, shards);
    job.micro_batch = batch;
    return job;
  };
  const json whole = Run(shape("s2", "fsdp", 1, 1, 2, 3), "s2");
  const std::vector<TestJob> others = {
      shape("s1", "fsdp", 1, 1, 1, 6), shape("s3", "fsdp", 1, 1, 3, 2),
      shape("s6", "fsdp", 1, 1, 6, 1), shape("h32", "hsdp", 1, 3, 2, 1),
      shape("h21", "hsdp", 1, 2, 1, 3)};
  for (const TestJob& job : others) {
    const json result = Run(job, job.name, At("s2", 4));
    EXPECT_NEAR(double(result["validation_loss"]["last"]), double(whole["validation_loss"]["last"]),
                2e-5)
        << job.name;
    EXPECT_EQ(result["tokens"], whole["tokens"]) << job.name;
  }
  // Into a federation, which trains twice the tokens a step, and back out of it.
  TestJob federation = shape("fl", "fl+hsdp", 2, 2, 2, 1);
  const json federated = Run(federation, "fl", At("s2", 4));
  EXPECT_EQ(federated["tokens"], 4 * 6 * 32 + 2 * 8 * 32);
  TestJob after = shape("out", "fsdp", 1, 1, 3, 2);
  after.steps = 8;
  const json out = Run(after, "out", At("fl", 6));
  EXPECT_NEAR(double(out["validation_loss"]["first"]), double(federated["validation_loss"]["last"]),
              1e-9)
      << "the same parameters, on the same sequences";
}

TEST_F(Checkpoints, LatestPassesOverDamagedOnesAndNamesThem) {
  TestJob job = Shape("first", "fsdp", 1, 1, 2);
  Run(job, "c");
  job.steps = 8;
  Damage(At("c", 6));
  std::filesystem::remove(At("c", 4) + "/manifest.json");
  job.name = "second";
  job.sections = Keys("c", "latest");
  const CommandResult result =
      Fedshard({"local", "run", folder_.Write(job), "--nodes", "1", "--slots", "2", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("step-00000006"));
  EXPECT_EQ(json::parse(result.out)["rounds_committed"], 3) << "steps 3 to 8 in rounds of two";
}

TEST_F(Checkpoints, BadOnesAreRefusedByName) {
  TestJob job = Shape("one", "fsdp", 1, 1, 2);
  job.steps = 2;
  Run(job, "c");
  job.name = "two";
  CommandResult result = Refused(job, "c", "latest");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("checkpoint.resume: is at step 2 of training.steps = 2"));
  result = Refused(job, "c", "never");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("holds checkpoints, up to step 2"));
  job.steps = 4;
  result = Refused(job, "c", folder_.path() + "/nowhere");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("nowhere"));
  Damage(At("c", 2));
  result = Refused(job, "c", At("c", 2));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("step-00000002"));
  EXPECT_THAT(result.err, HasSubstr("checksum"));
}

TEST_F(Checkpoints, OfAnotherModelAreRefused) {
  TestJob job = Shape("one", "fsdp", 1, 1, 2);
  job.steps = 2;
  Run(job, "c");
  folder_.WriteFile("other.json", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 256,
    "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 128})");
  job.model = "config: other.json, init: random";
  job.name = "two";
  job.steps = 4;
  const CommandResult result = Refused(job, "c", "latest");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("lm_head.weight: has 16384 elements in the checkpoint, 8192"));
}

TEST_F(Checkpoints, OnlyTheNewestAreKept) {
  TestJob job = Shape("one", "fl+fsdp", 2, 1, 2);
  job.sections = "checkpoint: {directory: c, every_rounds: 1, keep: 2}\n";
  LocalRun(folder_.Write(job), kNodes);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/c")) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("step-00000004", "step-00000006"));
}

// A directory that cannot be written costs the checkpoints, not the training.
TEST_F(Checkpoints, ThatCannotBeWrittenDoNotStopTheJob) {
  folder_.WriteFile("c", "a file, not a folder");
  TestJob job = Shape("one", "fsdp", 1, 1, 2);
  job.sections = "checkpoint: {directory: c/d, resume: never}\n";
  const json result = LocalRun(folder_.Write(job), kNodes);
  EXPECT_EQ(result["steps"], 6);
  EXPECT_TRUE(result["checkpoint"].is_null());
  const CommandResult table = Fedshard({"local", "run", folder_.Write(job), "--slots", "2"});
  EXPECT_THAT(table.out, HasSubstr("failed: step 6"));
}

TEST_F(Checkpoints, NonFiniteStepsAreSkippedUpToTheLimit) {
  TestJob job = Shape("one", "hsdp", 1, 2, 2);
  job.optimizer = "{type: sgd, learning_rate: 1e30, clip: 0}";
  job.schedule = "{type: constant}";
  job.evaluation = "{sequences: 0}";
  job.training = "  non_finite_limit: 3\n";
  // The first step is finite and ruins the parameters; the next three are skipped.
  job.steps = 4;
  EXPECT_EQ(LocalRun(folder_.Write(job), kNodes)["steps"], 4);
  job.name = "two";
  job.steps = 6;
  const CommandResult result =
      Fedshard({"local", "run", folder_.Write(job), "--nodes", "2", "--slots", "2"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err + result.out, HasSubstr("NON_FINITE_LOSS"));
  EXPECT_THAT(result.err + result.out, HasSubstr("3 such steps were skipped before"));
}

}  // namespace
}  // namespace fedshard::testing
