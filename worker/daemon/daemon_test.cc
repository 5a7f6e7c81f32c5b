// The worker daemon between an in-process coordinator and real processes standing in for trainers:
// registration, starting all or none, reports and directives both ways, rendezvous, failures,
// stops, lost streams with resend, a restarted coordinator, logs.
#include "worker/daemon/daemon.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <deque>
#include <filesystem>
#include <thread>

#include "common/testing/eventually.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "fedshard/v1/worker_service.grpc.pb.h"

namespace fedshard::daemon {
namespace {

using ::testing::AllOf;
using testing::Eventually;
using ::testing::HasSubstr;

// Speaks the coordinator's side of one node's stream; remembers numbered reports, acknowledges on
// heartbeats.
class FakeCoordinator : public v1::WorkerService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>;

  explicit FakeCoordinator(std::string address = "127.0.0.1:0", std::string incarnation = "first")
      : incarnation_(std::move(incarnation)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeCoordinator() override { Shutdown(); }
  void Shutdown() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  const std::string& address() const { return address_; }

  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override {
    v1::ConnectRequest request;
    if (!stream->Read(&request) || !request.has_register_()) return grpc::Status::CANCELLED;
    v1::ConnectResponse registered;
    {
      MutexLock lock(mu_);
      if (!refuse_.ok()) return refuse_;
      registrations_.push_back(request.register_());
      registered.mutable_registered()->set_coordinator_incarnation(incarnation_);
      registered.mutable_registered()->set_heartbeat_interval_ms(50);
      registered.mutable_registered()->set_last_report(last_report_);
      stream_ = stream;
      context_ = context;
      stream->Write(registered);
      for (const v1::ConnectResponse& directive : directives_) {
        if (directive.sequence() > request.register_().last_directive()) stream->Write(directive);
      }
    }
    while (stream->Read(&request)) {
      MutexLock lock(mu_);
      if (request.has_heartbeat()) {
        if (!acknowledging_) continue;
        v1::ConnectResponse acknowledge;
        acknowledge.mutable_acknowledge()->set_last_report(last_report_);
        stream->Write(acknowledge);
      } else {
        EXPECT_LE(request.sequence(), last_report_ + 1) << "a report was skipped";
        if (request.sequence() != last_report_ + 1) continue;
        last_report_ = request.sequence();
        reports_.push_back(request);
      }
    }
    MutexLock lock(mu_);
    if (stream_ == stream) stream_ = nullptr;
    return grpc::Status::OK;
  }
  grpc::Status SetRendezvousKey(grpc::ServerContext*, const v1::SetRendezvousKeyRequest* request,
                                v1::SetRendezvousKeyResponse*) override {
    MutexLock lock(mu_);
    keys_[request->job() + "/" + request->scope() + "/" + request->key()] = request->value();
    return grpc::Status::OK;
  }
  grpc::Status GetRendezvousKeys(grpc::ServerContext*, const v1::GetRendezvousKeysRequest* request,
                                 v1::GetRendezvousKeysResponse* response) override {
    const std::string key = request->job() + "/" + request->scope() + "/" + request->keys(0);
    const bool found = Eventually([&] {
      MutexLock lock(mu_);
      return keys_.count(key) > 0;
    });
    MutexLock lock(mu_);
    if (found) response->add_values(keys_[key]);
    return found ? grpc::Status::OK : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no key");
  }

  void Direct(v1::ConnectResponse directive) {
    MutexLock lock(mu_);
    directive.set_sequence(directives_.size() + 1);
    directives_.push_back(directive);
    if (stream_ != nullptr) stream_->Write(directive);
  }
  void DropStream() {
    MutexLock lock(mu_);
    if (context_ != nullptr) context_->TryCancel();
  }
  void Acknowledge(bool acknowledging) {
    MutexLock lock(mu_);
    acknowledging_ = acknowledging;
  }
  void Refuse(const grpc::Status& status) {
    MutexLock lock(mu_);
    refuse_ = status;
  }
  size_t registrations() {
    MutexLock lock(mu_);
    return registrations_.size();
  }
  v1::Register registration(size_t i) {
    MutexLock lock(mu_);
    return registrations_.at(i);
  }
  // Waits for a report that fits.
  template <typename Fits>
  v1::ConnectRequest WaitFor(Fits fits) {
    v1::ConnectRequest found;
    EXPECT_TRUE(Eventually([&] {
      MutexLock lock(mu_);
      for (const v1::ConnectRequest& report : reports_) {
        if (fits(report)) {
          found = report;
          return true;
        }
      }
      return false;
    }));
    return found;
  }
  v1::RankExited WaitForExit(int rank) {
    return WaitFor([rank](const v1::ConnectRequest& report) {
             return report.has_rank_exited() && report.rank_exited().rank() == rank;
           })
        .rank_exited();
  }
  std::string WaitForSummary(int rank) {
    return WaitFor([rank](const v1::ConnectRequest& report) {
             return report.has_rank_reported() && report.rank_reported().rank() == rank &&
                    report.rank_reported().report().has_summary();
           })
        .rank_reported()
        .report()
        .summary()
        .parameter_hash();
  }

 private:
  const std::string incarnation_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  Mutex mu_;
  Stream* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  grpc::Status refuse_;
  bool acknowledging_ = true;
  std::vector<v1::Register> registrations_;
  std::vector<v1::ConnectRequest> reports_;
  std::vector<v1::ConnectResponse> directives_;
  uint64_t last_report_ = 0;
  std::map<std::string, std::string> keys_;
};

v1::ConnectResponse StartRanks(uint64_t behaviour,
                               const std::vector<std::pair<int, int>>& rank_slots,
                               const std::string& job = "job") {
  v1::ConnectResponse directive;
  v1::StartRanks& start = *directive.mutable_start_ranks();
  start.set_job(job);
  start.set_generation(1);
  start.mutable_spec()->mutable_model()->set_seed(behaviour);
  for (const auto& [rank, slot] : rank_slots) {
    v1::RankPlacement& placement = *start.add_ranks();
    placement.set_rank(rank);
    placement.set_slot(slot);
  }
  return directive;
}

v1::ConnectResponse StopRanks(int grace_ms) {
  v1::ConnectResponse directive;
  directive.mutable_stop_ranks()->set_job("job");
  directive.mutable_stop_ranks()->set_generation(1);
  directive.mutable_stop_ranks()->set_grace_ms(grace_ms);
  directive.mutable_stop_ranks()->set_message("job canceled");
  return directive;
}

v1::ConnectResponse Decision(int64_t round, bool finish) {
  v1::ConnectResponse directive;
  v1::DirectRanks& ranks = *directive.mutable_direct_ranks();
  ranks.set_job("job");
  ranks.set_generation(1);
  ranks.mutable_directive()->mutable_decision()->set_round(round);
  ranks.mutable_directive()->mutable_decision()->set_finish(finish);
  return directive;
}

class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() : coordinator_(std::make_unique<FakeCoordinator>()) {}
  void Start() {
    DaemonOptions options;
    options.coordinator = coordinator_->address();
    options.node_id = "node-a";
    options.slots = 2;
    options.labels = {{"topology", "rack/a"}};
    options.log_directory = dir_.path() + "/logs";
    options.run_directory = dir_.path();
    options.trainer = FEDSHARD_FAKE_TRAINER;
    options.connect_timeout_us = 2'000'000;
    options.stop_grace_us = stop_grace_us_;
    auto daemon = Daemon::Start(options, clock_);
    ASSERT_THAT(daemon, testing::IsOk());
    daemon_ = *std::move(daemon);
    ASSERT_TRUE(Eventually([&] { return coordinator_->registrations() == 1; }));
  }
  testing::TempDir dir_;
  SystemClock clock_;
  int64_t stop_grace_us_ = 200'000;
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(DaemonTest, RegistersWithWhatItHas) {
  Start();
  const v1::Register registration = coordinator_->registration(0);
  EXPECT_EQ(registration.node_id(), "node-a");
  EXPECT_EQ(registration.slots(), 2);
  EXPECT_EQ(registration.labels(0).key(), "topology");
  EXPECT_EQ(registration.incarnation().size(), 32u);
  EXPECT_EQ(registration.coordinator_incarnation(), "");
}

TEST_F(DaemonTest, RunsRanksAndRelaysBothWays) {
  Start();
  coordinator_->Direct(StartRanks(0, {{4, 0}, {5, 1}}));
  EXPECT_EQ(coordinator_->WaitForSummary(4), "rank4");
  EXPECT_EQ(coordinator_->WaitForSummary(5), "rank5");
  coordinator_->Direct(Decision(3, true));
  for (const int rank : {4, 5}) {
    coordinator_->WaitFor([rank](const v1::ConnectRequest& report) {
      return report.has_rank_reported() && report.rank_reported().rank() == rank &&
             report.rank_reported().report().vote().round() == 3;
    });
    const v1::RankExited exited = coordinator_->WaitForExit(rank);
    EXPECT_EQ(exited.exit_code(), 0);
    EXPECT_EQ(exited.signal(), 0);
    EXPECT_EQ(exited.reason(), "");
  }
}

TEST_F(DaemonTest, ADirectiveBeforeTheTrainerAttachedIsKept) {
  Start();
  coordinator_->Direct(StartRanks(0, {{0, 0}}));
  coordinator_->Direct(Decision(1, true));
  EXPECT_EQ(coordinator_->WaitForExit(0).exit_code(), 0);
}

TEST_F(DaemonTest, RelaysRendezvousOfTheJobAndScope) {
  Start();
  coordinator_->Direct(StartRanks(4, {{0, 0}, {1, 1}}));
  EXPECT_EQ(coordinator_->WaitForSummary(0), "value1");
  EXPECT_EQ(coordinator_->WaitForSummary(1), "value0");
}

TEST_F(DaemonTest, ExitsAreReportedWithCodeReasonAndLog) {
  Start();
  coordinator_->Direct(StartRanks(1, {{0, 0}}));
  const v1::RankExited crashed = coordinator_->WaitForExit(0);
  EXPECT_EQ(crashed.exit_code(), 7);
  ASSERT_EQ(crashed.log_tail_size(), 1);
  EXPECT_THAT(crashed.log_tail(0), HasSubstr("about to fail"));
  coordinator_->Direct(StartRanks(2, {{1, 0}}, "other"));
  const v1::RankExited failed = coordinator_->WaitForExit(1);
  EXPECT_EQ(failed.exit_code(), 3);
  EXPECT_EQ(failed.reason(), "NON_FINITE_LOSS");
  EXPECT_EQ(failed.message(), "step 3");
}

TEST_F(DaemonTest, StartsAllOrNone) {
  Start();
  coordinator_->Direct(StartRanks(0, {{0, 0}, {1, 2}}));  // There is no slot 2.
  for (const int rank : {0, 1}) {
    const v1::RankExited exited = coordinator_->WaitForExit(rank);
    EXPECT_EQ(exited.reason(), "START_FAILED");
    EXPECT_THAT(exited.message(), HasSubstr("slot 2 does not exist"));
  }
  coordinator_->Direct(StartRanks(0, {{2, 1}}, "one"));
  EXPECT_EQ(coordinator_->WaitForSummary(2), "rank2");
  coordinator_->Direct(StartRanks(0, {{3, 1}}, "two"));
  EXPECT_THAT(coordinator_->WaitForExit(3).message(), HasSubstr("slot 1 of node-a is taken"));
}

TEST_F(DaemonTest, ASlotGivenTwiceStartsNothing) {
  Start();
  coordinator_->Direct(StartRanks(0, {{0, 0}, {1, 0}}));
  for (const int rank : {0, 1}) {
    const v1::RankExited exited = coordinator_->WaitForExit(rank);
    EXPECT_EQ(exited.reason(), "START_FAILED");
    EXPECT_THAT(exited.message(), HasSubstr("given twice"));
  }
}

TEST_F(DaemonTest, OutputThatIsNoTextBreaksNothing) {
  Start();
  coordinator_->Direct(StartRanks(5, {{0, 0}}));
  EXPECT_THAT(coordinator_->WaitForExit(0).log_tail(0), HasSubstr("bytes ??"));
  EXPECT_EQ(coordinator_->registrations(), 1u);
}

TEST_F(DaemonTest, StepsDoNotCrowdOutWhatMustArrive) {
  Start();
  coordinator_->Acknowledge(false);
  coordinator_->Direct(StartRanks(6, {{0, 0}}));
  EXPECT_EQ(coordinator_->WaitForSummary(0), "rank0");
  EXPECT_EQ(daemon_->WaitForFatal(0), std::nullopt);
  coordinator_->Acknowledge(true);
  coordinator_->Direct(Decision(1, true));
  EXPECT_EQ(coordinator_->WaitForExit(0).exit_code(), 0);
}

TEST_F(DaemonTest, AnEndingDaemonStartsNothing) {
  stop_grace_us_ = 3'000'000;
  Start();
  coordinator_->Direct(StartRanks(0, {{0, 0}}, "gentle"));
  coordinator_->Direct(StartRanks(3, {{1, 1}}, "stubborn"));
  coordinator_->WaitForSummary(0);
  coordinator_->WaitForSummary(1);
  std::thread end([this] { daemon_.reset(); });
  coordinator_->WaitForExit(0);
  // Rank 1 still has its grace: the daemon listens, and its slot 0 is free.
  coordinator_->Direct(StartRanks(0, {{2, 0}}, "late"));
  const v1::RankExited late = coordinator_->WaitForExit(2);
  EXPECT_EQ(late.reason(), "START_FAILED");
  EXPECT_THAT(late.message(), HasSubstr("stopping"));
  EXPECT_EQ(coordinator_->WaitForExit(1).signal(), SIGKILL);
  end.join();
}

TEST_F(DaemonTest, StopEndsGentleAndStubbornTrainers) {
  Start();
  coordinator_->Direct(StartRanks(0, {{0, 0}}));
  coordinator_->WaitForSummary(0);
  coordinator_->Direct(StopRanks(20'000));
  const v1::RankExited gentle = coordinator_->WaitForExit(0);
  EXPECT_EQ(gentle.reason(), "STOPPED");
  EXPECT_EQ(gentle.message(), "job canceled");
  coordinator_->Direct(StartRanks(3, {{1, 0}}));
  coordinator_->WaitForSummary(1);
  coordinator_->Direct(StopRanks(100));
  EXPECT_EQ(coordinator_->WaitForExit(1).signal(), SIGKILL);
}

TEST_F(DaemonTest, ALostStreamLosesNothing) {
  Start();
  coordinator_->Direct(StartRanks(0, {{0, 0}}));
  coordinator_->WaitForSummary(0);
  coordinator_->DropStream();
  coordinator_->Direct(Decision(9, true));  // Meets no stream, or a dying one.
  EXPECT_EQ(coordinator_->WaitForExit(0).exit_code(), 0);
  EXPECT_EQ(coordinator_->registrations(), 2u);
  EXPECT_EQ(coordinator_->registration(1).coordinator_incarnation(), "first");
  EXPECT_EQ(coordinator_->registration(1).incarnation(),
            coordinator_->registration(0).incarnation());
}

TEST_F(DaemonTest, ARestartedCoordinatorFindsNoTrainers) {
  Start();
  coordinator_->Direct(StartRanks(3, {{0, 0}}));
  coordinator_->WaitForSummary(0);
  const std::string address = coordinator_->address();
  coordinator_->Shutdown();
  coordinator_ = std::make_unique<FakeCoordinator>(address, "second");
  ASSERT_TRUE(Eventually([&] { return coordinator_->registrations() >= 1; }));
  // The slot is free: a new trainer starts there.
  coordinator_->Direct(StartRanks(0, {{7, 0}}, "next"));
  EXPECT_EQ(coordinator_->WaitForSummary(7), "rank7");
}

TEST_F(DaemonTest, ANewerIncarnationEndsTheDaemon) {
  Start();
  coordinator_->Refuse(grpc::Status(grpc::StatusCode::ABORTED, "a newer incarnation"));
  coordinator_->DropStream();
  std::optional<absl::Status> fatal;
  ASSERT_TRUE(Eventually([&] { return (fatal = daemon_->WaitForFatal(10'000)).has_value(); }));
  EXPECT_THAT(*fatal,
              testing::StatusIs(absl::StatusCode::kAborted, HasSubstr("newer incarnation")));
}

TEST_F(DaemonTest, LogsAreReadAndFollowed) {
  Start();
  coordinator_->Direct(StartRanks(1, {{0, 0}}));
  coordinator_->WaitForExit(0);
  v1::ConnectResponse read;
  read.mutable_read_logs()->set_log_request(11);
  read.mutable_read_logs()->set_job("job");
  read.mutable_read_logs()->set_tail_lines(10);
  read.mutable_read_logs()->set_follow(true);
  coordinator_->Direct(read);
  const v1::ConnectRequest lines = coordinator_->WaitFor([](const v1::ConnectRequest& report) {
    return report.has_log_lines() && report.log_lines().lines_size() > 0;
  });
  EXPECT_EQ(lines.log_lines().log_request(), 11u);
  EXPECT_EQ(lines.log_lines().lines(0).line(), "about to fail");
  EXPECT_GT(lines.log_lines().lines(0).time().seconds(), 1'600'000'000);
  coordinator_->WaitFor([](const v1::ConnectRequest& report) { return report.log_lines().done(); });
}

TEST_F(DaemonTest, EndsWithAllItsTrainers) {
  Start();
  coordinator_->Direct(StartRanks(3, {{0, 0}, {1, 1}}));
  coordinator_->WaitForSummary(0);
  coordinator_->WaitForSummary(1);
  daemon_.reset();
  EXPECT_EQ(coordinator_->WaitForExit(0).signal(), SIGKILL);
  EXPECT_EQ(coordinator_->WaitForExit(1).signal(), SIGKILL);
}

TEST(Mailbox, RefusesWhenFullAndDropsWhenClosed) {
  Mailbox mailbox;
  for (size_t i = 0; i < Mailbox::kMaxQueued; ++i) ASSERT_TRUE(mailbox.Push({}));
  EXPECT_FALSE(mailbox.Push({}));
  mailbox.Close();
  EXPECT_TRUE(mailbox.Push({})) << "a trainer on its way out is no reason to kill it";
  for (size_t i = 0; i < Mailbox::kMaxQueued; ++i) ASSERT_TRUE(mailbox.Pop().has_value());
  EXPECT_FALSE(mailbox.Pop().has_value());
}

TEST(TrainerServer, TakesNoSocketFromAnotherWorker) {
  const testing::TempDir dir;
  RankSessions sessions;
  const auto start = [&] {
    return TrainerServer::Start(
        dir.path() + "/t.sock", sessions,
        grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()),
        {[](const TrainerId&) {}, [](const TrainerId&, const v1::RankReport&) {}});
  };
  {
    const auto first = start();
    ASSERT_THAT(first, testing::IsOk());
    EXPECT_THAT(start(),
                testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another worker")));
    EXPECT_TRUE(std::filesystem::exists(dir.path() + "/t.sock"));
  }
  EXPECT_THAT(start(), testing::IsOk());
}

TEST(TrainerServer, RefusesStrangers) {
  const testing::TempDir dir;
  RankSessions sessions;
  const auto server = TrainerServer::Start(
      dir.path() + "/t.sock", sessions,
      grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()),
      {[](const TrainerId&) {}, [](const TrainerId&, const v1::RankReport&) {}});
  ASSERT_THAT(server, testing::IsOk());
  const auto stub = v1::TrainerService::NewStub(
      grpc::CreateChannel("unix:" + dir.path() + "/t.sock", grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Attach(&context);
  v1::AttachRequest hello;
  hello.mutable_hello()->set_token("guess");
  stream->Write(hello);
  v1::AttachResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace fedshard::daemon
