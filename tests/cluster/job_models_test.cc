// A job's name stands for its newest checkpoint: fedshard eval finds the validation loss that the
// job itself ended with, and fedshard generate continues a text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cluster/mini_cluster.h"
#include "tests/cluster/test_job.h"

namespace fedshard::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(JobModels, EvalAndGenerateByTheJobsName) {
  JobFolder folder;
  ClusterOptions options;  // Nobody dies here.
  options.node_lost_after = options.trainer_timeout = "60s";
  MiniCluster cluster(options);
  TestJob job;
  job.mode = "fl+fsdp";
  job.replicas = 1;
  job.sections = "checkpoint: {directory: checkpoints}\n";
  ASSERT_EQ(cluster.Cli({"submit", folder.Write(job)}).exit_code, 0);
  TestJob without;
  without.mode = "fsdp";
  without.groups = without.replicas = 1;
  without.name = "without";
  without.steps = 4;
  ASSERT_EQ(cluster.Cli({"submit", folder.Write(without)}).exit_code, 0);
  const json ended = cluster.WaitForState("test", {"COMPLETED", "FAILED"});
  ASSERT_TRUE(ended["result"].contains("validation_loss_last")) << ended.dump(2);
  const double loss = ended["result"]["validation_loss_last"];

  // Its validation file and sequence length are the defaults.
  const CommandResult eval = cluster.Cli(
      {"eval", "test", "--sequences", "8", "--threads", "1", "--ranks", "2", "-o", "json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const json result = json::parse(eval.out);
  EXPECT_NEAR(result["loss"].get<double>(), loss, 1e-9 * loss);
  EXPECT_EQ(result["step"], 8);
  EXPECT_EQ(result["sequence_length"], 32);

  const std::vector<std::string> generate = {"generate",      "jobs/test", "--prompt", "the ",
                                             "--temperature", "0",         "--tokens", "10",
                                             "--threads",     "1"};
  const CommandResult text = cluster.Cli(generate);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out.substr(0, 4), "the ");
  EXPECT_EQ(text.out.size(), 15u);
  EXPECT_EQ(cluster.Cli(generate).out, text.out);

  const CommandResult unknown = cluster.Cli({"eval", "other", "--data", "x.bin"});
  EXPECT_EQ(unknown.exit_code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("other"));
  cluster.WaitForState("without", {"COMPLETED", "FAILED"});
  const CommandResult none = cluster.Cli({"generate", "without", "--prompt", "a"});
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_THAT(none.err, HasSubstr("no checkpoint"));
  cluster.StopAndCheck();
}

}  // namespace
}  // namespace fedshard::testing
