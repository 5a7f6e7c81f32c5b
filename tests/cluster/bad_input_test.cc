// Bad input through the real binaries: each case ends with a clear error that names the place, and
// exit code 2 where the client can see it, 1 where only a trainer can.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/cluster/mini_cluster.h"
#include "tests/cluster/test_job.h"

namespace fedshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class BadInput : public ::testing::Test {
 protected:
  TestJob job_ = [] {
    TestJob job;
    job.mode = "fsdp";
    job.groups = job.replicas = 1;
    return job;
  }();
  JobFolder folder_;

  // The run must end with `code` and an error that has all of `parts`.
  void Refused(int code, const std::vector<std::string>& parts) {
    const CommandResult result =
        Fedshard({"local", "run", folder_.Write(job_), "--nodes", "1", "--slots", "2"});
    EXPECT_EQ(result.exit_code, code) << result.err;
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  }
};

TEST_F(BadInput, TokenFileTruncated) {
  std::filesystem::resize_file(folder_.path() + "/train.bin", 50'000);
  Refused(2, {"data.train", "train.bin", "120000", "50000"});
}

TEST_F(BadInput, WrongChecksum) {
  std::fstream file(folder_.path() + "/train.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(100);
  file.put('Z');
  file.close();
  Refused(2, {"train.bin", "checksum"});
}

TEST_F(BadInput, TokenBeyondTheVocabulary) {
  WriteTokenFile(folder_.path() + "/train", std::vector<uint16_t>(1000, 300), 256);
  Refused(2, {"train.bin", "300", "256"});
}

TEST_F(BadInput, FileShorterThanOneSample) {
  WriteTokenFile(folder_.path() + "/train", std::vector<uint16_t>(32, 1), 256);
  Refused(2, {"train.bin", "33"});
}

TEST_F(BadInput, MissingTokenFile) {
  std::filesystem::remove(folder_.path() + "/train.bin");
  Refused(2, {"train.bin"});
}

TEST_F(BadInput, HeadsNotDivisible) {
  folder_.WriteFile("model.json", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 256,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 3, "max_position_embeddings": 128})");
  Refused(2, {"model.json", "num_key_value_heads"});
}

TEST_F(BadInput, HiddenSizeZero) {
  folder_.WriteFile("model.json", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 256,
    "hidden_size": 0, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128})");
  Refused(2, {"model.json", "hidden_size"});
}

TEST_F(BadInput, UnknownArchitecture) {
  folder_.WriteFile("model.json", R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 256})");
  Refused(2, {"model.json", "GPT2LMHeadModel"});
}

TEST_F(BadInput, MeshLargerThanTheSlots) {
  job_.shards = 3;
  Refused(2, {"3", "2", "slots"});
}

TEST_F(BadInput, NoStepsPerRound) {
  job_.every_steps = 0;
  Refused(2, {"test.yaml:12", "every_steps"});
}

TEST_F(BadInput, LearningRateNotANumber) {
  job_.optimizer = "{type: adamw, learning_rate: .nan}";
  Refused(2, {"test.yaml:10", "learning_rate"});
}

TEST_F(BadInput, MeshOfAnotherMode) {
  job_.groups = 2;
  Refused(2, {"test.yaml:4", "federation_groups"});
}

TEST_F(BadInput, UnknownKeyWithSuggestion) {
  folder_.WriteFile("typo.yaml", "name: a\nmodle: {config: model.json}\n");
  const CommandResult result = Fedshard({"validate", folder_.path() + "/typo.yaml"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("typo.yaml:2:1"), HasSubstr("modle"), HasSubstr("model")));
}

TEST_F(BadInput, TenMegabytesOfYaml) {
  folder_.WriteFile("big.yaml", "name: " + std::string(10'000'000, 'a') + "\n");
  const CommandResult result = Fedshard({"validate", folder_.path() + "/big.yaml"}, 20);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("big.yaml"));
}

TEST_F(BadInput, YamlBomb) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int j = 0; j < 9; ++j) bomb += ", " + last;
    bomb += "]\n";
  }
  folder_.WriteFile("bomb.yaml", bomb);
  const CommandResult result = Fedshard({"validate", folder_.path() + "/bomb.yaml"}, 20);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("bomb.yaml"));
}

TEST_F(BadInput, NonFiniteLossNamesStepAndRank) {
  job_.steps = 50;
  job_.optimizer = "{type: sgd, learning_rate: 1e30, momentum: 0, clip: 0}";
  job_.schedule = "{type: constant}";
  const CommandResult result =
      Fedshard({"local", "run", folder_.Write(job_), "--nodes", "1", "--slots", "2"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("NON_FINITE_LOSS"));
  EXPECT_THAT(result.err, ContainsRegex("step [0-9]+"));
  EXPECT_THAT(result.err, ContainsRegex("rank [01]"));
}

}  // namespace
}  // namespace fedshard::testing
