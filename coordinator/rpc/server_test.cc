// The coordinator's API over real gRPC, with a worker that plays all ranks: a job's whole life and
// result as a client sees them, watching it, what a hash that disagrees leads to, and broken rules.
#include "coordinator/rpc/server.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "common/testing/eventually.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "coordinator/rpc/errors.h"
#include "coordinator/storage/memory_journal.h"
#include "fedshard/v1/error.pb.h"
#include "fedshard/v1/job_service.grpc.pb.h"
#include "fedshard/v1/worker_service.grpc.pb.h"

namespace fedshard::rpc {
namespace {

using ::testing::AllOf;
using testing::Eventually;
using ::testing::HasSubstr;

v1::JobSpec Spec(const std::string& id) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        model {
          init: MODEL_INIT_RANDOM
          config_json: '{"architectures": ["LlamaForCausalLM"], "vocab_size": 256, '
                       '"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}'
        }
        data {
          train: "/d/train.bin"
          validation: "/d/validation.bin"
          sequence_length: 16
          order: SAMPLE_ORDER_SHUFFLED
        }
        mesh { mode: MESH_MODE_FL_FSDP federation_groups: 2 replicas: 1 shards: 1 }
        training {
          steps: 3
          micro_batch: 2
          accumulation: 1
          optimizer {
            type: OPTIMIZER_TYPE_ADAMW
            learning_rate: 0.002
            beta1: 0.9
            beta2: 0.95
            eps: 1e-8
          }
          schedule { type: SCHEDULE_TYPE_CONSTANT }
        }
        federation { every_steps: 2 weighting: WEIGHTING_TOKENS chunk_bytes: 4194304 }
        evaluation { sequences: 4 }
        resources { device: DEVICE_CPU threads_per_rank: 1 collective_timeout_seconds: 60 })pb",
      &spec));
  spec.set_id(id);
  return spec;
}

// A node of two slots whose ranks do everything right, but for the hash of one rank if told so.
class ScriptedWorker {
 public:
  ScriptedWorker(const std::string& address, const std::string& node,
                 const std::string& incarnation, int wrong_hash_in_round = -1)
      : stub_(v1::WorkerService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        wrong_hash_in_round_(wrong_hash_in_round) {
    stream_ = stub_->Connect(&context_);
    v1::ConnectRequest hello;
    hello.mutable_register_()->set_node_id(node);
    hello.mutable_register_()->set_incarnation(incarnation);
    hello.mutable_register_()->set_slots(2);
    hello.mutable_register_()->set_data_address("127.0.0.1");
    stream_->Write(hello);
    thread_ = std::thread([this] { Run(); });
  }
  ~ScriptedWorker() {
    context_.TryCancel();
    thread_.join();
  }

 private:
  void Run() {
    v1::ConnectResponse directive;
    while (stream_->Read(&directive)) Handle(directive);
    stream_->Finish();
  }

  void Handle(const v1::ConnectResponse& directive) {
    if (directive.has_start_ranks()) {
      for (const v1::RankPlacement& placement : directive.start_ranks().ranks()) {
        generation_[placement.rank()] = directive.start_ranks().generation();
        job_ = directive.start_ranks().job();
        Vote(placement.rank(), 0, 1);
      }
    } else if (directive.has_stop_ranks()) {
      for (const auto& [rank, generation] : std::map<int, uint64_t>(generation_)) {
        if (generation == directive.stop_ranks().generation()) Exit(rank, 5);
      }
    } else if (directive.has_direct_ranks()) {
      const v1::DirectRanks& ranks = directive.direct_ranks();
      for (const auto& [rank, generation] : std::map<int, uint64_t>(generation_)) {
        if (generation == ranks.generation()) Follow(rank, ranks.directive());
      }
    }
  }

  void Follow(int rank, const v1::RankDirective& directive) {
    if (directive.has_plan())
      return Vote(rank, directive.plan().round(), directive.plan().attempt());
    const v1::RoundDecision& decision = directive.decision();
    if (decision.evaluate()) {
      v1::RankReport report;
      report.mutable_evaluation()->set_round(decision.round());
      report.mutable_evaluation()->set_loss_sum(32 * 2.5);
      report.mutable_evaluation()->set_tokens(32);
      Report(rank, report);
    }
    if (decision.finish()) {
      v1::RankReport report;
      report.mutable_summary()->set_parameter_hash("beef");
      if (rank == 0) Report(rank, report);
      return Exit(rank, 0);
    }
    if (!decision.has_next()) return;
    v1::RankReport steps;
    v1::StepRecord& step = *steps.mutable_steps()->add_steps();
    step.set_step(decision.next().first_step() + decision.next().steps());
    step.set_loss(3.0);
    Report(rank, steps);
    v1::RankReport ready;
    ready.mutable_group_ready()->set_round(decision.next().round());
    ready.mutable_group_ready()->set_steps(decision.next().steps());
    ready.mutable_group_ready()->set_tokens(decision.next().steps() * 32);
    ready.mutable_group_ready()->set_first_loss(4.0);
    ready.mutable_group_ready()->set_last_loss(3.0);
    Report(rank, ready);
  }

  void Vote(int rank, int64_t round, int32_t attempt) {
    v1::RankReport report;
    v1::RankVote& vote = *report.mutable_vote();
    vote.set_round(round);
    vote.set_attempt(attempt);
    vote.set_shard_hash(round == wrong_hash_in_round_ && rank == 1 ? 999 : 100 + round);
    vote.set_federation_bytes(1000);
    vote.set_parameters(10);
    vote.set_padded_parameters(16);
    Report(rank, report);
  }

  void Report(int rank, const v1::RankReport& report) {
    v1::ConnectRequest request;
    v1::RankReported& reported = *request.mutable_rank_reported();
    reported.set_job(job_);
    reported.set_generation(generation_[rank]);
    reported.set_rank(rank);
    *reported.mutable_report() = report;
    Write(request);
  }

  void Exit(int rank, int code) {
    v1::ConnectRequest request;
    v1::RankExited& exited = *request.mutable_rank_exited();
    exited.set_job(job_);
    exited.set_generation(generation_[rank]);
    exited.set_rank(rank);
    exited.set_exit_code(code);
    Write(request);
    generation_.erase(rank);
  }

  void Write(v1::ConnectRequest& request) {
    request.set_sequence(++sequence_);
    stream_->Write(request);
  }

  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> stream_;
  const int wrong_hash_in_round_;
  std::string job_;
  std::map<int, uint64_t> generation_;
  uint64_t sequence_ = 0;
  std::thread thread_;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    service::ServiceOptions options;
    options.sessions.coordinator_incarnation = "c";
    options.data_directory = dir_.path();
    service_ = std::make_unique<service::Service>(options, &clock_,
                                                  std::make_unique<storage::MemoryJournal>());
    server_ =
        std::make_unique<Server>(ServerOptions{"127.0.0.1:0", false}, service_.get(), &clock_);
    service_->Start();
    EXPECT_THAT(server_->Start(), testing::IsOk());
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    jobs_ = v1::JobService::NewStub(grpc::CreateCustomChannel(
        server_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  ~ServerTest() override {
    server_->Drain();
    service_->Stop();
    server_->Stop(std::chrono::milliseconds(500));
  }

  struct Answer {
    grpc::Status status;
    v1::ErrorDetail detail;
    v1::Job job;
  };
  Answer Submit(const v1::JobSpec& spec, const std::string& request_id = "",
                bool validate_only = false) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    request.set_validate_only(validate_only);
    v1::SubmitJobResponse response;
    Answer answer;
    grpc::ClientContext context;
    answer.status = jobs_->SubmitJob(Deadline(context), request, &response);
    return Finish(context, response.job(), answer);
  }
  Answer Get(const std::string& name) {
    v1::GetJobRequest request;
    request.set_name(name);
    v1::GetJobResponse response;
    Answer answer;
    grpc::ClientContext context;
    answer.status = jobs_->GetJob(Deadline(context), request, &response);
    return Finish(context, response.job(), answer);
  }
  static grpc::ClientContext* Deadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    return &context;
  }
  static Answer Finish(const grpc::ClientContext& context, const v1::Job& job, Answer answer) {
    answer.job = job;
    const auto& trailers = context.GetServerTrailingMetadata();
    if (const auto found = trailers.find(kErrorTrailer); found != trailers.end()) {
      answer.detail.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()));
    }
    return answer;
  }
  void WaitForState(const std::string& name, v1::JobState state) {
    EXPECT_TRUE(Eventually([&] { return Get(name).job.state() == state; }))
        << Get(name).job.ShortDebugString();
  }

  testing::TempDir dir_;
  SystemClock clock_;
  std::unique_ptr<service::Service> service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

TEST_F(ServerTest, AJobFromSubmissionToResult) {
  EXPECT_EQ(Submit(Spec("early")).job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Get("jobs/early").job.reason(), "WAITING_FOR_SLOTS");
  const ScriptedWorker worker(server_->address(), "a", "1");
  WaitForState("jobs/early", v1::JOB_STATE_COMPLETED);
  const v1::Job job = Get("jobs/early").job;
  EXPECT_EQ(job.result().steps(), 3);
  EXPECT_EQ(job.result().tokens(), 3 * 2 * 32);
  EXPECT_EQ(job.result().rounds_committed(), 2);
  EXPECT_EQ(job.result().parameter_hash(), "beef");
  EXPECT_EQ(job.result().train_loss_first(), 4.0);
  EXPECT_EQ(job.result().train_loss_last(), 3.0);
  EXPECT_EQ(job.result().validation_loss_last(), 2.5);
  EXPECT_EQ(job.result().parameters(), 10);
  // 1000 bytes per rank and round, 2 rounds, 3 steps.
  EXPECT_DOUBLE_EQ(job.result().bytes_per_rank_per_step().federation(), 2000.0 / 3);

  grpc::ClientContext context;
  v1::ListRoundsRequest request;
  request.set_parent("jobs/early");
  v1::ListRoundsResponse rounds;
  ASSERT_TRUE(jobs_->ListRounds(Deadline(context), request, &rounds).ok());
  ASSERT_EQ(rounds.rounds_size(), 2);
  EXPECT_EQ(rounds.rounds(0).state(), v1::ROUND_STATE_COMMITTED);
  EXPECT_EQ(rounds.rounds(0).participants(1).first_sample(), 4);
  EXPECT_EQ(rounds.rounds(1).participants(0).first_sample(), 8);
  EXPECT_EQ(rounds.rounds(0).participants(0).weight(), 0.5);
}

TEST_F(ServerTest, WatchShowsTheWayToTheEnd) {
  Submit(Spec("watched"));
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name("jobs/watched");
  const auto reader = jobs_->WatchJob(Deadline(context), request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.job().state(), v1::JOB_STATE_QUEUED);
  const ScriptedWorker worker(server_->address(), "a", "1");
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.job().state(), v1::JOB_STATE_COMPLETED);
}

TEST_F(ServerTest, ADisagreeingHashAbortsTheRoundAndNamesTheRanks) {
  const ScriptedWorker worker(server_->address(), "a", "1", /*wrong_hash_in_round=*/1);
  Submit(Spec("torn"));
  WaitForState("jobs/torn", v1::JOB_STATE_FAILED);
  const v1::Job job = Get("jobs/torn").job;
  EXPECT_EQ(job.reason(), "HASH_MISMATCH");
  EXPECT_THAT(job.message(), AllOf(HasSubstr("shard 0"), HasSubstr("0"), HasSubstr("1")));
  EXPECT_EQ(job.result().rounds_aborted(), 1);
  EXPECT_EQ(job.result().rounds_committed(), 0);
}

TEST_F(ServerTest, EveryBrokenRuleOfASpecIsNamed) {
  v1::JobSpec bad = Spec("bad");
  bad.mutable_mesh()->set_federation_groups(0);
  bad.mutable_federation()->set_every_steps(0);
  const Answer answer = Submit(bad);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answer.detail.reason(), "INVALID_FIELD");
  std::vector<std::string> fields;
  for (const auto& violation : answer.detail.violations()) fields.push_back(violation.field());
  EXPECT_THAT(fields, ::testing::IsSupersetOf(
                          {"spec.mesh.federation_groups", "spec.federation.every_steps"}));
}

}  // namespace
}  // namespace fedshard::rpc
