// Whole jobs through `fedshard local run`, with real trainers over Gloo: every mode completes,
// sharding never changes a bit of the result, and the bytes sent are those of the schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tests/cluster/mini_cluster.h"
#include "tests/cluster/test_job.h"

namespace fedshard::testing {
namespace {

using nlohmann::json;

TestJob Shape(const std::string& name, const std::string& mode, int groups, int replicas,
              int shards, int accumulation = 1) {
  TestJob job = Shaped(name, mode, groups, replicas, shards);
  job.accumulation = accumulation;
  job.steps = 5;
  job.every_steps = 3;
  job.check_replicas_every = 1;
  return job;
}

TEST(Modes, ShardingAndReplicationDoNotChangeABit) {
  const JobFolder folder;
  // The same four micro-batches per step, on one rank or spread over two or four in every way.
  const std::vector<TestJob> jobs = {
      Shape("single", "fsdp", 1, 1, 1, 4), Shape("ddp", "hsdp", 1, 4, 1),
      Shape("fsdp4", "fsdp", 1, 1, 4),     Shape("hsdp", "hsdp", 1, 2, 2),
      Shape("fsdp2", "fsdp", 1, 1, 2, 2),
  };
  std::map<std::string, std::string> hashes;
  for (const TestJob& job : jobs) {
    const json result = LocalRun(folder.Write(job), {"--nodes", "2", "--slots", "2"});
    hashes[job.name] = result["parameter_hash"];
    EXPECT_EQ(result["steps"], 5) << job.name;
    EXPECT_EQ(result["rounds_committed"], 2) << job.name;
  }
  for (const auto& [name, hash] : hashes) EXPECT_EQ(hash, hashes["single"]) << name;
}

// Groups go on from different parameters in the rounds between, and from equal ones in the last.
TEST(Modes, OverlappedAveragingTrainsToo) {
  const JobFolder folder;
  TestJob job = Shape("plain", "fl+hsdp", 2, 2, 2);
  job.steps = 12;
  job.evaluation = "{sequences: 8}";
  const json plain = LocalRun(folder.Write(job), {"--nodes", "2", "--slots", "4"});
  job.name = "overlapped";
  job.federation = ", overlap_steps: 1";
  const json overlapped = LocalRun(folder.Write(job), {"--nodes", "2", "--slots", "4"});
  EXPECT_EQ(overlapped["rounds_committed"], 4);
  EXPECT_NE(overlapped["parameter_hash"], plain["parameter_hash"]);
  EXPECT_NEAR(double(overlapped["validation_loss"]["last"]),
              double(plain["validation_loss"]["last"]), 0.02);
  EXPECT_EQ(overlapped["bytes_per_rank_per_step"], plain["bytes_per_rank_per_step"]);
}

TEST(Modes, TheHashSeesADifferentSeed) {
  const JobFolder folder;
  TestJob job = Shape("one", "fsdp", 1, 1, 1);
  const json first = LocalRun(folder.Write(job), {"--nodes", "1", "--slots", "1"});
  job.seed = 2;
  const json second = LocalRun(folder.Write(job), {"--nodes", "1", "--slots", "1"});
  EXPECT_NE(first["parameter_hash"], second["parameter_hash"]);
}

TEST(Modes, FederatedGroupsGiveTheSameBitsHoweverTheyAreShardedAndHoweverOften) {
  const JobFolder folder;
  const json sharded =
      LocalRun(folder.Write(Shape("flfsdp", "fl+fsdp", 2, 1, 2)), {"--nodes", "2", "--slots", "2"});
  const json replicated =
      LocalRun(folder.Write(Shape("flhsdp", "fl+hsdp", 2, 2, 1)), {"--nodes", "2", "--slots", "2"});
  const json again =
      LocalRun(folder.Write(Shape("flfsdp", "fl+fsdp", 2, 1, 2)), {"--nodes", "2", "--slots", "2"});
  EXPECT_EQ(sharded["parameter_hash"], replicated["parameter_hash"]);
  EXPECT_EQ(sharded["parameter_hash"], again["parameter_hash"]);
  EXPECT_EQ(sharded["tokens"], 5 * 2 * 2 * 32);
  EXPECT_EQ(sharded["mesh"], (json{{"federation_groups", 2}, {"replicas", 1}, {"shards", 2}}));
}

// The model of test_job.cc: units in the order embedding, blocks, head, in elements.
std::vector<int64_t> UnitElements() {
  const int64_t hidden = 64, ffn = 160, heads = 4, kv_heads = 2, head_dim = 16, vocabulary = 256;
  const int64_t block = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim +
                        3 * hidden * ffn + 2 * hidden;
  return {vocabulary * hidden, block, block, block, hidden + vocabulary * hidden};
}

struct Bytes {
  double shard = 0, replica = 0, federation = 0, paper_shard = 0;
};

// The closed form of the schedule, method.md 2.6 with gathers as the engine makes them.
Bytes Expected(const TestJob& job) {
  const std::vector<int64_t> units = UnitElements();
  double model_bytes = 0, gathered = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    const int64_t multiple = 4096 * job.shards;
    const double bytes = 4.0 * ((units[u] + multiple - 1) / multiple * multiple);
    const bool gathered_once = u == 0 || u + 2 >= units.size();
    model_bytes += bytes;
    gathered += (gathered_once ? 2 : 3) * bytes;
  }
  const double s = job.shards, r = job.replicas, f = job.groups, a = job.every_steps;
  return {(s - 1) / s * gathered * job.accumulation, 2 * (r - 1) / r * model_bytes / s,
          2 * (f - 1) / f * model_bytes / s / a, 3 * (s - 1) / s * model_bytes * job.accumulation};
}

TEST(Modes, BytesSentAreThoseOfTheSchedule) {
  const JobFolder folder;
  for (TestJob job : {Shape("bfsdp", "fsdp", 1, 1, 4, 2), Shape("bhsdp", "hsdp", 1, 2, 2),
                      Shape("bflfsdp", "fl+fsdp", 2, 1, 2), Shape("bflhsdp", "fl+hsdp", 2, 2, 2)}) {
    job.steps = 6;
    job.every_steps = 3;
    const json result = LocalRun(folder.Write(job), {"--nodes", "2", "--slots", "4"});
    const json& measured = result["bytes_per_rank_per_step"];
    const Bytes expected = Expected(job);
    printf(
        "%-8s shard %.0f (closed form %.0f, paper's bound %.0f) replica %.0f (%.0f) "
        "federation %.0f (%.0f) bytes per rank and step\n",
        job.mode.c_str(), measured["shard"].get<double>(), expected.shard, expected.paper_shard,
        measured["replica"].get<double>(), expected.replica, measured["federation"].get<double>(),
        expected.federation);
    EXPECT_NEAR(measured["shard"], expected.shard, 0.01 * expected.shard) << job.mode;
    EXPECT_NEAR(measured["replica"], expected.replica, 0.01 * expected.replica) << job.mode;
    EXPECT_NEAR(measured["federation"], expected.federation, 0.01 * expected.federation)
        << job.mode;
    EXPECT_LE(measured["shard"].get<double>(), 1.01 * expected.paper_shard) << job.mode;
  }
}

TEST(Modes, GroupsTrainOnDisjointSamplesThatTogetherAreAllOfThem) {
  const JobFolder folder;
  TestJob job = Shape("disjoint", "fl+hsdp", 2, 1, 2);
  job.steps = 7;
  const std::string keep = folder.path() + "/kept";
  const json result = LocalRun(folder.Write(job), {"--nodes", "2", "--slots", "2", "--keep", keep});
  // Every rank logs the samples of each round it trained: "round 1 samples [0, 6) ...".
  const std::regex line(R"(round (\d+) samples \[(\d+), (\d+)\))");
  std::set<int64_t> seen;
  int64_t counted = 0;
  const auto logs = RunCommand({"find", keep, "-name", "rank-*.log"});
  std::istringstream files(logs.out);
  std::map<std::pair<int64_t, int64_t>, std::set<std::string>> ranges;
  for (std::string path; std::getline(files, path);) {
    std::ifstream log(path);
    std::smatch match;
    for (std::string text; std::getline(log, text);) {
      if (std::regex_search(text, match, line)) {
        ranges[{std::stoll(match[2]), std::stoll(match[3])}].insert(path);
      }
    }
  }
  for (const auto& [range, paths] : ranges) {
    EXPECT_EQ(paths.size(), 2u) << "one group of two ranks shares a lease";
    for (int64_t i = range.first; i < range.second; ++i) seen.insert(i);
    counted += range.second - range.first;
  }
  const int64_t samples = 7 * 2 * 2;  // Steps, groups, samples of one group's step.
  EXPECT_EQ(counted, samples);
  EXPECT_EQ(static_cast<int64_t>(seen.size()), samples);
  EXPECT_EQ(*seen.rbegin(), samples - 1);
  EXPECT_EQ(result["log_directory"], keep);

  // steps.jsonl: per group in the federated modes.
  std::ifstream steps(keep + "/steps.jsonl");
  std::map<int, int> per_group;
  for (std::string text; std::getline(steps, text);) {
    const json step = json::parse(text);
    for (const char* key :
         {"step", "tokens", "loss", "gradient_norm", "learning_rate", "seconds"}) {
      EXPECT_TRUE(step.contains(key)) << key;
    }
    ++per_group[step["group"]];
  }
  EXPECT_EQ(per_group, (std::map<int, int>{{0, 7}, {1, 7}}));
}

TEST(Modes, AJobWithoutEvaluationHasNoValidationLoss) {
  const JobFolder folder;
  TestJob job = Shape("blind", "fsdp", 1, 1, 2);
  job.evaluation = "{sequences: 0}";  // Although the job names a validation file.
  const json result = LocalRun(folder.Write(job), {"--nodes", "1", "--slots", "2"});
  EXPECT_EQ(result["state"], "COMPLETED");
  EXPECT_TRUE(result["validation_loss"]["first"].is_null());
  EXPECT_TRUE(result["validation_loss"]["last"].is_null());
  EXPECT_TRUE(result["validation_perplexity"].is_null());
}

TEST(Modes, LocalRunPrintsExactlyTheDocumentedFields) {
  const JobFolder folder;
  TestJob job = Shape("fields", "fl+fsdp", 2, 1, 1);
  job.steps = 30;
  const json result = LocalRun(folder.Write(job), {"--nodes", "1", "--slots", "2"});
  std::set<std::string> keys;
  for (const auto& [key, value] : result.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"name",
                                         "state",
                                         "mode",
                                         "mesh",
                                         "steps",
                                         "tokens",
                                         "rounds_committed",
                                         "rounds_aborted",
                                         "skipped_steps",
                                         "checkpoint",
                                         "train_loss",
                                         "validation_loss",
                                         "validation_perplexity",
                                         "tokens_per_second",
                                         "wall_seconds",
                                         "bytes_per_rank_per_step",
                                         "parameters",
                                         "padded_parameters",
                                         "parameter_hash",
                                         "log_directory"}));
  EXPECT_EQ(result["state"], "COMPLETED");
  EXPECT_EQ(result["rounds_committed"], 10);
  EXPECT_EQ(result["rounds_aborted"], 0);
  EXPECT_EQ(result["parameters"],
            64 * 256 * 2 + 64 + 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64));
  EXPECT_GE(result["padded_parameters"], result["parameters"]);
  EXPECT_LT(result["train_loss"]["last"].get<double>(),
            result["train_loss"]["first"].get<double>());
  EXPECT_LT(result["validation_loss"]["last"].get<double>(),
            result["validation_loss"]["first"].get<double>());
  EXPECT_NEAR(result["validation_perplexity"].get<double>(),
              std::exp(result["validation_loss"]["last"].get<double>()), 1e-6);
  EXPECT_GT(result["tokens_per_second"].get<double>(), 0);
}

}  // namespace
}  // namespace fedshard::testing
