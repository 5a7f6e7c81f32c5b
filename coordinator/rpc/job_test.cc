// Proves that a whole job can be played over the real gRPC server by a scripted worker, and that
// what people see of it (GetJob, WatchJob, ListGroups, ListRounds, steps.jsonl) is what happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/testing/eventually.h"
#include "common/testing/temp_dir.h"
#include "coordinator/rpc/testing/fake_worker.h"
#include "coordinator/rpc/testing/test_coordinator.h"

namespace fedshard::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSteps = 2;

// Plays the job of TestSpec on one node with four slots.
class PlayedJob {
 public:
  PlayedJob(TestCoordinator& coordinator, FakeWorker& worker, const std::string& id)
      : coordinator_(coordinator), worker_(worker), id_(id) {}

  void Submit() {
    Call call;
    v1::SubmitJobRequest request;
    *request.mutable_spec() = TestSpec(id_);
    v1::SubmitJobResponse response;
    const grpc::Status status = coordinator_.jobs().SubmitJob(&call.context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.job().name(), "jobs/" + id_);
    EXPECT_EQ(response.job().spec().SerializeAsString(), request.spec().SerializeAsString());
  }

  void TakeStarts() {
    for (int i = 0; i < 2; ++i) {
      const v1::ConnectResponse response = worker_.NextDirective();
      ASSERT_TRUE(response.has_start_ranks()) << response.DebugString();
      const v1::StartRanks& start = response.start_ranks();
      EXPECT_EQ(start.job(), id_);
      EXPECT_EQ(start.spec().SerializeAsString(), TestSpec(id_).SerializeAsString());
      for (const v1::RankPlacement& rank : start.ranks()) {
        EXPECT_EQ(rank.node(), "node-0");
        generations_[rank.rank()] = start.generation();
      }
      federation_generation_ = start.federation_generation();
    }
    ASSERT_EQ(generations_.size(), 4u);
    EXPECT_EQ(generations_[0], generations_[1]);
    EXPECT_NE(generations_[0], generations_[2]);
  }

  void Vote(int64_t round) {
    for (int rank = 0; rank < 4; ++rank) {
      v1::RankReport report;
      v1::RankVote& vote = *report.mutable_vote();
      vote.set_round(round);
      vote.set_attempt(1);
      vote.set_shard_hash(1000 * round + rank % 2);
      vote.set_parameters(round == 0 ? 5000 : 0);
      vote.set_padded_parameters(round == 0 ? 5120 : 0);
      vote.set_shard_bytes(round == 0 ? 0 : 300);
      vote.set_federation_bytes(round == 0 ? 0 : 100);
      vote.set_averaging_seconds(round == 0 ? 0 : 0.25);
      Report(rank, report);
    }
  }

  // Both groups get the decision; returns the first one.
  v1::RoundDecision TakeDecision() {
    v1::RoundDecision first;
    for (int group = 0; group < 2; ++group) {
      const v1::ConnectResponse response = worker_.NextDirective();
      EXPECT_TRUE(response.direct_ranks().directive().has_decision()) << response.DebugString();
      EXPECT_EQ(response.direct_ranks().generation(), generations_[2 * group]);
      if (group == 0) first = response.direct_ranks().directive().decision();
    }
    return first;
  }

  void TakePlan(int64_t round) {
    for (int group = 0; group < 2; ++group) {
      const v1::ConnectResponse response = worker_.NextDirective();
      ASSERT_TRUE(response.direct_ranks().directive().has_plan()) << response.DebugString();
      const v1::RoundPlan& plan = response.direct_ranks().directive().plan();
      EXPECT_EQ(plan.round(), round);
      ASSERT_EQ(plan.participants_size(), 2);
      EXPECT_DOUBLE_EQ(plan.participants(1).weight(), 0.5);
    }
  }

  void Evaluate(int64_t round, double loss) {
    for (int rank = 0; rank < 4; rank += 2) {
      v1::RankReport report;
      report.mutable_evaluation()->set_round(round);
      report.mutable_evaluation()->set_loss_sum(loss * 32);
      report.mutable_evaluation()->set_tokens(32);
      Report(rank, report);
    }
  }

  void Train(int64_t round, double loss) {
    for (int rank = 0; rank < 4; rank += 2) {
      v1::RankReport steps;
      v1::StepRecord& step = *steps.mutable_steps()->add_steps();
      step.set_step(round);
      step.set_tokens(64);
      step.set_loss(loss);
      step.set_gradient_norm(1.5);
      step.set_learning_rate(0.001);
      step.set_seconds(0.5);
      Report(rank, steps);
      v1::RankReport ready;
      v1::GroupReady& message = *ready.mutable_group_ready();
      message.set_round(round);
      message.set_steps(1);
      message.set_tokens(64);
      message.set_first_loss(loss);
      message.set_last_loss(loss);
      message.set_step_seconds(0.5);
      Report(rank, ready);
    }
  }

  void Finish() {
    v1::RankReport report;
    report.mutable_summary()->set_parameter_hash("abcd");
    report.mutable_summary()->add_sample_tokens(7);
    Report(0, report);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(worker_.SendExit(id_, generations_[rank], rank, 0, 0));
    }
  }

  void Report(int rank, const v1::RankReport& report) {
    EXPECT_TRUE(worker_.SendRankReport(id_, generations_[rank], rank, report));
  }
  uint64_t generation(int rank) { return generations_[rank]; }
  uint64_t federation_generation() const { return federation_generation_; }

 private:
  TestCoordinator& coordinator_;
  FakeWorker& worker_;
  const std::string id_;
  std::map<int, uint64_t> generations_;
  uint64_t federation_generation_ = 0;
};

// All states that a watcher saw, without repeats, and how the watch ended.
struct Watched {
  std::vector<v1::JobState> states;
  v1::Job last;
  grpc::Status status;
};
Watched WatchToTheEnd(TestCoordinator& coordinator, const std::string& name) {
  Watched watched;
  Call call;
  v1::WatchJobRequest request;
  request.set_name(name);
  const auto stream = coordinator.jobs().WatchJob(&call.context, request);
  v1::WatchJobResponse response;
  while (stream->Read(&response)) {
    watched.last = response.job();
    if (watched.states.empty() || watched.states.back() != response.job().state()) {
      watched.states.push_back(response.job().state());
    }
  }
  watched.status = stream->Finish();
  return watched;
}

v1::Job GetJob(TestCoordinator& coordinator, const std::string& name) {
  Call call;
  v1::GetJobRequest request;
  request.set_name(name);
  v1::GetJobResponse response;
  const grpc::Status status = coordinator.jobs().GetJob(&call.context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

void ExpectCompleted(const v1::Job& job) {
  EXPECT_EQ(job.state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job.reason(), "COMPLETED");
  EXPECT_TRUE(job.has_end_time());
  const v1::JobResult& result = job.result();
  EXPECT_EQ(result.steps(), kSteps);
  EXPECT_EQ(result.tokens(), 256);
  EXPECT_EQ(result.rounds_committed(), 2);
  EXPECT_DOUBLE_EQ(result.train_loss_first(), 5);
  EXPECT_DOUBLE_EQ(result.train_loss_last(), 4);
  EXPECT_DOUBLE_EQ(result.validation_loss_first(), 5.5);
  EXPECT_DOUBLE_EQ(result.validation_loss_last(), 3.5);
  // 256 tokens in two rounds of 0.5 s steps and 0.25 s averaging.
  EXPECT_DOUBLE_EQ(result.tokens_per_second(), 256 / 1.5);
  // Four ranks sent 300 and 100 bytes in each of two rounds of one step.
  EXPECT_DOUBLE_EQ(result.bytes_per_rank_per_step().shard(), 300);
  EXPECT_DOUBLE_EQ(result.bytes_per_rank_per_step().replica(), 0);
  EXPECT_DOUBLE_EQ(result.bytes_per_rank_per_step().federation(), 100);
  EXPECT_EQ(result.parameters(), 5000);
  EXPECT_EQ(result.padded_parameters(), 5120);
  EXPECT_EQ(result.parameter_hash(), "abcd");
  EXPECT_THAT(result.sample_tokens(), ElementsAre(7));
}

TEST(JobTest, IsPlayedToItsEnd) {
  const testing::TempDir directory;
  service::ServiceOptions options;
  options.data_directory = directory.path();
  TestCoordinator coordinator(options);
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  PlayedJob job(coordinator, worker, "demo");
  job.Submit();
  Watched watched;
  std::thread watcher([&] { watched = WatchToTheEnd(coordinator, "jobs/demo"); });
  job.TakeStarts();
  EXPECT_EQ(GetJob(coordinator, "jobs/demo").state(), v1::JOB_STATE_STARTING);
  job.Vote(0);
  v1::RoundDecision decision = job.TakeDecision();
  EXPECT_TRUE(decision.commit());
  EXPECT_TRUE(decision.evaluate());
  EXPECT_EQ(decision.next().round(), 1);
  EXPECT_EQ(decision.next().lease().sample_count(), 4);
  EXPECT_EQ(decision.next().tokens_per_step(), 128);
  job.Evaluate(0, 5.5);
  for (int64_t round = 1; round <= kSteps; ++round) {
    job.Train(round, 6.0 - round);
    job.TakePlan(round);
    job.Vote(round);
    decision = job.TakeDecision();
    EXPECT_TRUE(decision.commit());
    EXPECT_EQ(decision.finish(), round == kSteps);
  }
  EXPECT_TRUE(decision.evaluate());
  job.Evaluate(kSteps, 3.5);
  job.Finish();
  watcher.join();
  EXPECT_TRUE(watched.status.ok()) << watched.status.error_message();
  EXPECT_EQ(watched.states.back(), v1::JOB_STATE_COMPLETED);
  ExpectCompleted(watched.last);
  ExpectCompleted(GetJob(coordinator, "jobs/demo"));

  const v1::JobProgress progress = watched.last.progress();
  EXPECT_EQ(progress.step(), kSteps);
  EXPECT_EQ(progress.total_tokens(), 256);
  EXPECT_EQ(progress.committed_tokens(), 256);
  EXPECT_DOUBLE_EQ(progress.loss(), 4);
  EXPECT_DOUBLE_EQ(progress.validation_loss(), 3.5);

  Call call;
  v1::ListRoundsRequest request;
  request.set_parent("jobs/demo");
  v1::ListRoundsResponse rounds;
  ASSERT_TRUE(coordinator.jobs().ListRounds(&call.context, request, &rounds).ok());
  ASSERT_EQ(rounds.rounds_size(), 2);
  EXPECT_EQ(rounds.rounds(1).name(), "jobs/demo/rounds/2");
  EXPECT_EQ(rounds.rounds(1).state(), v1::ROUND_STATE_COMMITTED);
  EXPECT_EQ(rounds.rounds(1).participants(1).first_sample(), 12);
  EXPECT_DOUBLE_EQ(rounds.rounds(1).validation_loss(), 3.5);

  std::ifstream steps(directory.path() + "/jobs/demo/steps.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(steps, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[3], HasSubstr("\"step\":2,\"group\":1,\"tokens\":64,\"loss\":4.0"));
}

TEST(JobTest, FailsWithItsCauseAndStopsWhenAllRanksHaveExited) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  PlayedJob job(coordinator, worker, "demo");
  job.Submit();
  job.TakeStarts();
  job.Vote(0);
  job.TakeDecision();
  ASSERT_TRUE(worker.SendExit("demo", job.generation(3), 3, 0, 9));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(worker.NextDirective().has_stop_ranks());
  const v1::Job failed = GetJob(coordinator, "jobs/demo");
  EXPECT_EQ(failed.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(failed.reason(), "TRAINER_KILLED");
  Watched watched;
  std::thread watcher([&] { watched = WatchToTheEnd(coordinator, "jobs/demo"); });
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(worker.SendExit("demo", job.generation(rank), rank, 5, 0));
  }
  watcher.join();
  EXPECT_TRUE(watched.status.ok());
  EXPECT_THAT(watched.states, ElementsAre(v1::JOB_STATE_FAILED));
  bool stopped = false;
  for (const v1::Condition& condition : watched.last.conditions()) {
    if (condition.type() == "Stopped") stopped = condition.active();
  }
  EXPECT_TRUE(stopped);
}

TEST(JobTest, SurvivesABrokenStreamWithoutLosingOrRepeatingAnything) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  PlayedJob job(coordinator, worker, "demo");
  job.Submit();
  job.TakeStarts();
  // As if the worker had seen neither directive.
  worker.Break();
  worker.ForgetDirectives();
  ASSERT_TRUE(worker.Connect());
  job.TakeStarts();
  job.Vote(0);
  job.TakeDecision();
  worker.Break();
  ASSERT_TRUE(worker.Connect());
  // The four votes are known to the coordinator: sent again, they are duplicates.
  EXPECT_EQ(worker.last_report(), 4u);
  v1::ConnectRequest again;
  again.set_sequence(4);
  again.mutable_rank_exited()->set_job("demo");
  again.mutable_rank_exited()->set_generation(job.generation(0));
  again.mutable_rank_exited()->set_signal(9);
  ASSERT_TRUE(worker.Write(again));
  job.Train(1, 5);
  job.TakePlan(1);
  EXPECT_EQ(GetJob(coordinator, "jobs/demo").state(), v1::JOB_STATE_RUNNING);
}

TEST(JobTest, RendezvousLivesAsLongAsTheGeneration) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  PlayedJob job(coordinator, worker, "demo");
  job.Submit();
  job.TakeStarts();
  const std::string scope = "g" + std::to_string(job.generation(0));
  grpc::Status waited, gone;
  v1::GetRendezvousKeysResponse values;
  v1::ErrorDetail gone_detail;
  std::thread getter([&] {
    Call call;
    v1::GetRendezvousKeysRequest request;
    request.set_job("demo");
    request.set_scope(scope);
    request.add_keys("a");
    waited = coordinator.workers().GetRendezvousKeys(&call.context, request, &values);
    Call second;
    request.add_keys("never");
    v1::GetRendezvousKeysResponse ignored;
    gone = coordinator.workers().GetRendezvousKeys(&second.context, request, &ignored);
    gone_detail = second.Detail();
  });
  for (const std::string& one : {scope, "f" + std::to_string(job.federation_generation())}) {
    Call call;
    v1::SetRendezvousKeyRequest request;
    request.set_job("demo");
    request.set_scope(one);
    request.set_key("a");
    request.set_value("1");
    v1::SetRendezvousKeyResponse response;
    const grpc::Status status =
        coordinator.workers().SetRendezvousKey(&call.context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  Call call;
  v1::CancelJobRequest cancel;
  cancel.set_name("jobs/demo");
  cancel.set_reason("enough");
  v1::CancelJobResponse canceled;
  // Not before the first wait is over, so that each wait has its own end.
  while (true) {
    Call probe;
    probe.context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
    v1::GetRendezvousKeysRequest request;
    request.set_job("demo");
    request.set_scope(scope);
    request.add_keys("a");
    v1::GetRendezvousKeysResponse response;
    if (coordinator.workers().GetRendezvousKeys(&probe.context, request, &response).ok()) break;
  }
  ASSERT_TRUE(coordinator.jobs().CancelJob(&call.context, cancel, &canceled).ok());
  EXPECT_EQ(canceled.job().state(), v1::JOB_STATE_CANCELING);
  EXPECT_EQ(canceled.job().message(), "enough");
  getter.join();
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(gone_detail.reason(), "SCOPE_GONE");
  if (waited.ok()) {
    EXPECT_THAT(values.values(), ElementsAre("1"));
  } else {
    // The getter started only after the cancellation.
    EXPECT_EQ(waited.error_code(), grpc::StatusCode::ABORTED);
  }
}

TEST(JobTest, AWaitForKeysEndsAtTheCallsDeadline) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  PlayedJob job(coordinator, worker, "demo");
  job.Submit();
  job.TakeStarts();
  Call call;
  call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  v1::GetRendezvousKeysRequest request;
  request.set_job("demo");
  request.set_scope("g" + std::to_string(job.generation(0)));
  request.add_keys("never");
  v1::GetRendezvousKeysResponse response;
  EXPECT_EQ(coordinator.workers().GetRendezvousKeys(&call.context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST(JobTest, LogsComeFromTheNodeThatRunsTheRanks) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  PlayedJob job(coordinator, worker, "demo");
  job.Submit();
  job.TakeStarts();
  Call call;
  v1::GetJobLogsRequest request;
  request.set_name("jobs/demo");
  request.add_ranks(2);
  const auto stream = coordinator.jobs().GetJobLogs(&call.context, request);
  const v1::ConnectResponse directive = worker.NextDirective();
  ASSERT_TRUE(directive.has_read_logs());
  EXPECT_EQ(directive.read_logs().tail_lines(), 100);
  EXPECT_THAT(directive.read_logs().ranks(), ElementsAre(2));
  v1::ConnectRequest report;
  v1::LogLines& lines = *report.mutable_log_lines();
  lines.set_log_request(directive.read_logs().log_request());
  v1::LogLine& line = *lines.add_lines();
  line.set_rank(2);
  line.mutable_time()->set_seconds(1'700'000'000);
  line.set_line("hello");
  lines.set_done(true);
  ASSERT_TRUE(worker.SendReport(report));
  v1::GetJobLogsResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.rank(), 2);
  EXPECT_EQ(response.node(), "node-0");
  EXPECT_EQ(response.time().seconds(), 1'700'000'000);
  EXPECT_EQ(response.line(), "hello");
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(JobTest, AReaderWhoLeavesStopsTheNodes) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  PlayedJob job(coordinator, worker, "demo");
  job.Submit();
  job.TakeStarts();
  Call call;
  v1::GetJobLogsRequest request;
  request.set_name("jobs/demo");
  request.set_follow(true);
  const auto stream = coordinator.jobs().GetJobLogs(&call.context, request);
  const v1::ConnectResponse read = worker.NextDirective();
  ASSERT_TRUE(read.has_read_logs());
  call.context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
  const v1::ConnectResponse stop = worker.NextDirective();
  ASSERT_TRUE(stop.has_stop_logs());
  EXPECT_EQ(stop.stop_logs().log_request(), read.read_logs().log_request());
}

}  // namespace
}  // namespace fedshard::rpc
