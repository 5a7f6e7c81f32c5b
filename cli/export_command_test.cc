// `fedshard export` finds a checkpoint by folder or by job, writes its parameters bit for bit, and
// says with its exit code why it does not.
#include "cli/export_command.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "cli/exit_codes.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "fedshard/v1/job_service.grpc.pb.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/testing/fake_state.h"

namespace fedshard::cli {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kConfig[] = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 301,
  "hidden_size": 36, "intermediate_size": 91, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 2, "head_dim": 6})";

// Knows one job.
class OneJob : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override {
    if (request->name() != job_.name()) return {grpc::StatusCode::NOT_FOUND, "no such job"};
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  }
  v1::Job job_;
};

class ExportCommandTest : public ::testing::Test {
 protected:
  ExportCommandTest() {
    state_.mesh = {1, 1, 3};
    checkpoint_ = checkpoint::testing::WriteAll(folder_.path(), state_).path;
    SetModelConfig(kConfig);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    global_.coordinator = "127.0.0.1:" + std::to_string(port);
    service_.job_.set_name("jobs/mine");
  }
  ~ExportCommandTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  void SetModelConfig(const std::string& config) const {
    const std::string path = checkpoint_ + "/manifest.json";
    const auto text = checkpoint::ReadWholeFile(path, 1 << 20);
    ASSERT_THAT(text, testing::IsOk());
    auto manifest = checkpoint::ParseManifest(*text);
    ASSERT_THAT(manifest, testing::IsOk());
    manifest->model_config = config;
    ASSERT_THAT(checkpoint::WriteDurably(path, checkpoint::ToJson(*manifest)), testing::IsOk());
  }
  // Exit code; what it wrote to standard error in `error_`.
  int Run(const std::string& what, ExportCommand command = {}) {
    command.what = what;
    command.out = out_;
    ::testing::internal::CaptureStderr();
    ::testing::internal::CaptureStdout();
    const int code = RunExport(global_, command);
    error_ = ::testing::internal::GetCapturedStderr();
    output_ = ::testing::internal::GetCapturedStdout();
    return code;
  }
  void ExpectExported() const {
    const auto weights = checkpoint::HfWeights::Open(out_, state_.model);
    ASSERT_THAT(weights, testing::IsOk());
    const int64_t size = 301 * 36;
    std::vector<float> values(size);
    ASSERT_THAT((*weights)->Read("lm_head.weight", 0, size, values.data()), testing::IsOk());
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(values[i],
                checkpoint::testing::ValueOf("parameters", 0, "lm_head.weight", i, "F32"))
          << i;
    }
  }

  testing::TempDir folder_;
  checkpoint::testing::StateOptions state_;
  std::string checkpoint_;
  std::string out_ = folder_.path() + "/out";
  OneJob service_;
  std::unique_ptr<grpc::Server> server_;
  GlobalOptions global_;
  std::string error_, output_;
};

TEST_F(ExportCommandTest, OfAFolder) {
  ASSERT_EQ(Run(checkpoint_), kExitDone) << error_;
  EXPECT_THAT(output_, HasSubstr("step 400 of fake"));
  EXPECT_THAT(output_, HasSubstr("model.safetensors\n"));
  EXPECT_THAT(error_, HasSubstr("--tokenizer"));
  ExpectExported();
}

TEST_F(ExportCommandTest, OfAJob) {
  service_.job_.mutable_progress()->set_checkpoint(checkpoint_);
  ASSERT_EQ(Run("mine"), kExitDone) << error_;
  ExpectExported();
}

TEST_F(ExportCommandTest, TakesTheTokenizerThatTheJobBeganWith) {
  testing::TempDir init;
  std::ofstream(init.path() + "/tokenizer.json") << "{}";
  service_.job_.mutable_progress()->set_checkpoint(checkpoint_);
  service_.job_.mutable_spec()->mutable_model()->set_init_directory(init.path());
  ASSERT_EQ(Run("jobs/mine"), kExitDone) << error_;
  EXPECT_THAT(output_, HasSubstr("tokenizer.json"));
  EXPECT_TRUE(fs::exists(out_ + "/tokenizer.json"));
}

TEST_F(ExportCommandTest, SaysWhereNoCheckpointIs) {
  EXPECT_EQ(Run("mine"), kExitRefused);
  EXPECT_THAT(error_, HasSubstr("jobs/mine has no checkpoint"));
  service_.job_.mutable_progress()->set_checkpoint("/nowhere/step-00000001");
  EXPECT_EQ(Run("mine"), kExitNotFound);
  EXPECT_THAT(error_, HasSubstr("/nowhere/step-00000001"));
  EXPECT_EQ(Run("other"), kExitNotFound);
  EXPECT_EQ(Run("./no/folder"), kExitNotFound);
  EXPECT_EQ(Run(folder_.path()), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("manifest.json"));
  global_.coordinator = "127.0.0.1:1";
  EXPECT_EQ(Run("mine"), kExitUnreachable);
}

TEST_F(ExportCommandTest, RefusesWhatItCannotDo) {
  ExportCommand command;
  command.max_file_size = "large";
  EXPECT_EQ(Run(checkpoint_, command), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--max-file-size"));
  command = {};
  command.tokenizer = "/nowhere";
  EXPECT_EQ(Run(checkpoint_, command), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("/nowhere"));
  fs::create_directory(out_);
  std::ofstream(out_ + "/mine.txt") << "mine";
  EXPECT_EQ(Run(checkpoint_), kExitRefused);
  EXPECT_THAT(error_, HasSubstr(out_));
  fs::remove_all(out_);
  SetModelConfig("{}");
  EXPECT_EQ(Run(checkpoint_), kExitUsage);
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ExportCommandTest, LeavesNothingOfADamagedCheckpoint) {
  const std::string file = checkpoint_ + "/group-0-shard-1.safetensors";
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(damaged);
  int64_t header = 0;
  damaged.read(reinterpret_cast<char*>(&header), sizeof header);
  damaged.seekp(8 + header + 100);  // Within the embedding.
  damaged.put('\x7f');
  damaged.close();
  EXPECT_EQ(Run(checkpoint_), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("group-0-shard-1.safetensors"));
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path(), checkpoint_);
  }
}

}  // namespace
}  // namespace fedshard::cli
