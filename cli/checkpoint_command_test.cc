// `fedshard checkpoint` tells people what lies in a directory, names what is damaged, and says with
// its exit code whether all is well.
#include "cli/checkpoint_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/exit_codes.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/testing/fake_state.h"

namespace fedshard::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::testing::StateOptions;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CheckpointCommand : public ::testing::Test {
 protected:
  CheckpointCommand() {
    state_.mesh = {2, 1, 2};
    for (const int64_t step : {100, 200}) {
      state_.step = step;
      checkpoint::testing::WriteAll(dir_.path(), state_);
    }
  }

  // Exit code of `command`; what it wrote in output_ and error_.
  template <typename Command>
  int Run(Command command) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = command();
    output_ = ::testing::internal::GetCapturedStdout();
    error_ = ::testing::internal::GetCapturedStderr();
    return code;
  }
  int List(bool as_json = false) {
    return Run([&] { return RunCheckpointList(dir_.path(), as_json); });
  }
  int Verify(const std::string& path) {
    return Run([&] { return RunCheckpointVerify(path); });
  }
  int Diff(const std::string& a, const std::string& b, bool all = false, bool as_json = false) {
    return Run([&] { return RunCheckpointDiff(a, b, all, as_json); });
  }
  std::string Path(int64_t step) const {
    return dir_.path() + "/" + checkpoint::CheckpointName(step);
  }
  void FlipByte() const {
    std::fstream file(Path(200) + "/group-1-shard-0.safetensors",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(9000);
    file.write("\xff\xfe\xfd\xfc", 4);
  }
  void SetModelConfig(const std::string& config) const {
    const std::string path = Path(200) + "/manifest.json";
    auto manifest = checkpoint::ParseManifest(*checkpoint::ReadWholeFile(path, 1 << 20));
    manifest->model_config = config;
    ASSERT_TRUE(checkpoint::WriteDurably(path, checkpoint::ToJson(*manifest)).ok());
  }

  fedshard::testing::TempDir dir_;
  StateOptions state_;
  std::string output_;
  std::string error_;
};

TEST_F(CheckpointCommand, Lists) {
  fs::create_directory(Path(300) + ".partial-a7");
  EXPECT_EQ(List(), kExitDone);
  EXPECT_THAT(output_, AllOf(ContainsRegex("NAME +JOB +STEP +TOKENS +MESH +SIZE +AGE +STATE"),
                             ContainsRegex("step-00000200 +fake +200 +200000 +2x1x2 +[0-9.]+ "
                                           "[KM]iB +[0-9.]+s +complete"),
                             ContainsRegex("step-00000300.partial-a7 +unfinished")));
  EXPECT_LT(output_.find("step-00000200"), output_.find("step-00000100"));
  EXPECT_THAT(error_, IsEmpty());

  fs::remove(Path(100) + "/group-0-shard-1.safetensors");
  EXPECT_EQ(List(true), kExitDone);
  const json list = json::parse(output_);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["step"], 200);
  EXPECT_EQ(list[0]["mesh"]["federation_groups"], 2);
  EXPECT_GT(list[0]["bytes"], 100'000);
  EXPECT_EQ(list[1]["state"], "damaged");
  EXPECT_THAT(list[1]["error"].get<std::string>(), HasSubstr("shard-1.safetensors: is missing"));
  EXPECT_EQ(list[2]["state"], "unfinished");
  EXPECT_THAT(error_, HasSubstr("shard-1.safetensors: is missing"));

  EXPECT_EQ(Run([&] { return RunCheckpointList(dir_.path() + "/none", false); }), kExitNotFound);
  EXPECT_THAT(error_, HasSubstr(dir_.path() + "/none"));
}

TEST_F(CheckpointCommand, Verifies) {
  EXPECT_EQ(Verify(dir_.path() + "/"), kExitDone);
  EXPECT_THAT(output_, AllOf(HasSubstr(Path(100) + ": good"), HasSubstr(Path(200) + ": good"),
                             ContainsRegex("group-1-shard-1.safetensors +[0-9.]+ KiB +ok")));
  FlipByte();
  EXPECT_EQ(Verify(dir_.path()), kExitFailed);
  EXPECT_THAT(output_,
              AllOf(HasSubstr(Path(100) + ": good"), HasSubstr(Path(200) + ": DAMAGED"),
                    ContainsRegex("group-1-shard-0.safetensors +[0-9.]+ KiB +bytes .*checksum"),
                    ContainsRegex("group-1-shard-1.safetensors +[0-9.]+ KiB +ok")));
  EXPECT_EQ(Verify(Path(100) + "/"), kExitDone);
  EXPECT_THAT(output_, Not(HasSubstr("step-00000200")));
  EXPECT_EQ(Verify(Path(200)), kExitFailed);
  fs::remove(Path(200) + "/manifest.json");
  EXPECT_EQ(Verify(Path(200)), kExitFailed);
  EXPECT_THAT(output_, HasSubstr("has no manifest.json"));
  EXPECT_EQ(Verify(Path(300)), kExitNotFound);
  EXPECT_EQ(Verify("/"), kExitNotFound);
  EXPECT_THAT(error_, HasSubstr("has no checkpoints"));
}

TEST_F(CheckpointCommand, VerifiesTheModel) {
  const std::string config = R"({"model_type": "llama", "vocab_size": 301, "hidden_size": 36,
    "intermediate_size": 91, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 6})";
  SetModelConfig(config);
  EXPECT_EQ(Verify(Path(200)), kExitDone);
  EXPECT_THAT(output_, ContainsRegex("\\(model\\) +whole"));
  json other = json::parse(config);
  other["num_hidden_layers"] = 3;
  SetModelConfig(other.dump());
  EXPECT_EQ(Verify(Path(200)), kExitFailed);
  EXPECT_THAT(output_, HasSubstr("model.layers.2.input_layernorm.weight: is not in the"));
  SetModelConfig("{}");
  EXPECT_EQ(Verify(Path(200)), kExitDone);
  EXPECT_THAT(output_, HasSubstr("not checked: architectures"));
}

TEST_F(CheckpointCommand, Diffs) {
  state_.mesh = {2, 2, 3};
  const std::string other = dir_.path() + "/other";
  const std::string b = checkpoint::testing::WriteAll(other, state_).path;
  EXPECT_EQ(Diff(Path(200), b), kExitDone);
  EXPECT_THAT(output_,
              AllOf(ContainsRegex("mesh +2x1x2 +2x2x3 +differs"),
                    HasSubstr("105 of 105 tensors have equal bits"), Not(HasSubstr("PARAMETER"))));
  EXPECT_EQ(Diff(Path(200), b, true), kExitDone);
  EXPECT_THAT(output_, ContainsRegex("lm_head.weight +parameters +0 +10836 +0 +0 +equal bits"));
  // The same values at another step.
  EXPECT_EQ(Diff(Path(100), b), kExitFailed);
  EXPECT_THAT(output_, AllOf(ContainsRegex("step +100 +200 +differs"),
                             HasSubstr("105 of 105 tensors have equal bits")));
  state_.salt = 1;
  const std::string c = checkpoint::testing::WriteAll(other, state_).path;
  EXPECT_EQ(Diff(Path(200), c), kExitFailed);
  EXPECT_THAT(output_,
              AllOf(ContainsRegex("model.norm.weight +second_moment +1 +36 +36 +.*differs"),
                    HasSubstr("0 of 105 tensors have equal bits")));
  EXPECT_EQ(Diff(Path(200), c, false, true), kExitFailed);
  const json result = json::parse(output_);
  EXPECT_EQ(result["parameters"].size(), 105u);
  EXPECT_EQ(result["parameters"][0]["equal_bits"], false);
  EXPECT_GT(result["parameters"][0]["max_absolute"], 1.0);
  EXPECT_EQ(result["counters"]["step"]["a"], "200");

  FlipByte();
  EXPECT_EQ(Diff(Path(200), c), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("group-1-shard-0.safetensors: bytes ["));
  EXPECT_EQ(Diff(Path(200), dir_.path() + "/none"), kExitNotFound);
}

TEST_F(CheckpointCommand, Merges) {
  const std::string out = dir_.path() + "/merged";
  const auto merge = [&](int32_t group) {
    return Run([&] { return RunCheckpointMerge(Path(200), group, out); });
  };
  EXPECT_EQ(merge(2), kExitNotFound);
  EXPECT_THAT(error_, HasSubstr("has no group 2"));
  EXPECT_EQ(merge(1), kExitDone);
  EXPECT_EQ(output_, out + "/step-00000200\n");
  EXPECT_EQ(merge(1), kExitRefused);
  EXPECT_THAT(error_, HasSubstr("is there already"));
  EXPECT_EQ(Verify(out), kExitDone);
}

}  // namespace
}  // namespace fedshard::cli
