// Weights through whole jobs with real trainers: what a job trained comes out as a Hugging Face
// folder, and a job on another mesh that begins with it has the same parameters, bit for bit; a
// folder that is wrong is refused by tensor before the job starts, and one that is gone by the time
// it starts fails the job with its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/cluster/mini_cluster.h"
#include "tests/cluster/model_folder.h"
#include "tests/cluster/test_job.h"

namespace fedshard::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Weights : public ::testing::Test {
 protected:
  TestJob Job(const std::string& name, const std::string& mode, int groups, int replicas,
              int shards) const {
    TestJob job = Shaped(name, mode, groups, replicas, shards);
    job.steps = 4;
    job.every_steps = 2;
    job.sections = "checkpoint: {directory: " + name + "-checkpoints, every_rounds: 1}\n";
    return job;
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  JobFolder folder_;
};

TEST_F(Weights, OutOfOneJobAndIntoAnother) {
  const json trained = LocalRun(folder_.Write(Job("one", "fl+fsdp", 2, 1, 2)));
  const CommandResult exported = Fedshard(
      {"export", trained["checkpoint"], "--out", Path("trained"), "--max-file-size", "50KB"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  ASSERT_TRUE(fs::exists(Path("trained/model.safetensors.index.json"))) << exported.out;

  TestJob next = Job("two", "hsdp", 1, 2, 3);
  next.model = "init: trained";
  next.optimizer = "{type: sgd, learning_rate: 1e-30, clip: 0}";  // Moves nothing.
  const json again = LocalRun(folder_.Write(next));
  EXPECT_EQ(again["parameter_hash"], trained["parameter_hash"]);
  EXPECT_EQ(again["parameters"], trained["parameters"]);
  EXPECT_NEAR(again["validation_loss"]["first"].get<double>(),
              trained["validation_loss"]["last"].get<double>(), 1e-6);

  const CommandResult second =
      Fedshard({"export", again["checkpoint"], "--out", Path("again"), "--max-file-size", "50KB"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(Path("trained"))) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(Contents(Path("again/" + name)), Contents(entry.path())) << name;
    ++files;
  }
  EXPECT_GT(files, 3);
}

TEST_F(Weights, OfAJobOfTheCoordinator) {
  MiniCluster cluster;
  TestJob job = Job("small", "fsdp", 1, 1, 2);
  ASSERT_EQ(cluster.Cli({"submit", folder_.Write(job)}).exit_code, 0);
  cluster.WaitForState("small", {"COMPLETED"});
  const CommandResult exported =
      cluster.Cli({"export", "small", "--out", Path("out"), "--dtype", "bf16"});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr("step 4 of small"));
  EXPECT_THAT(Contents(Path("out/config.json")), HasSubstr("bfloat16"));

  job.name = "unsaved";
  job.sections = "";
  ASSERT_EQ(cluster.Cli({"submit", folder_.Write(job)}).exit_code, 0);
  cluster.WaitForState("unsaved", {"COMPLETED"});
  const CommandResult refused = cluster.Cli({"export", "unsaved", "--out", Path("none")});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("has no checkpoint"));
  EXPECT_FALSE(fs::exists(Path("none")));
  cluster.StopAndCheck();
}

TEST_F(Weights, AWrongFolderIsRefusedByTensor) {
  ModelWeights weights = RandomWeights(SmallModel(), 1);
  TestJob job = Job("wrong", "fsdp", 1, 1, 1);
  job.model = "init: wrong-model";
  weights.values.erase("model.layers.1.mlp.up_proj.weight");
  WriteModelFolder(Path("wrong-model"), weights);
  const CommandResult refused = Fedshard({"validate", folder_.Write(job)});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(Path("wrong-model")),
                                 HasSubstr("\"model.layers.1.mlp.up_proj.weight\"")));
}

TEST_F(Weights, AFolderThatIsGoneFailsTheJobByItsName) {
  ClusterOptions options;
  options.nodes = 1;
  options.slots = 1;
  MiniCluster cluster(options);
  TestJob first = Job("first", "fsdp", 1, 1, 1);
  first.steps = 1'000'000;
  first.sections = "";
  ASSERT_EQ(cluster.Cli({"submit", folder_.Write(first)}).exit_code, 0);
  cluster.WaitForState("first", {"RUNNING"});
  WriteModelFolder(Path("model"), RandomWeights(SmallModel(), 1));
  TestJob second = Job("second", "fsdp", 1, 1, 1);
  second.model = "init: model";
  const CommandResult submitted = cluster.Cli({"submit", folder_.Write(second)});
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  fs::remove_all(Path("model"));
  ASSERT_EQ(cluster.Cli({"cancel", "first"}).exit_code, 0);
  const json failed = cluster.WaitForState("second", {"FAILED", "COMPLETED"});
  EXPECT_EQ(failed["state"], "JOB_STATE_FAILED");
  EXPECT_THAT(failed["message"].get<std::string>(), HasSubstr(Path("model")));
  cluster.StopAndCheck();
}

}  // namespace
}  // namespace fedshard::testing
