// Trainers that crash, hang, ignore TERM or stop are seen, ended and reaped, with the reason and
// their last lines; nothing survives the supervisor.
#include "worker/supervisor/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <ctime>
#include <fstream>

#include "common/testing/eventually.h"
#include "common/testing/temp_dir.h"
#include "common/utf8.h"

namespace fedshard::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::Eventually;
using ::testing::HasSubstr;

class SupervisorTest : public ::testing::Test {
 protected:
  void Make(int64_t timeout_us = 60'000'000) {
    SupervisorOptions options;
    options.trainer_timeout_us = timeout_us;
    supervisor_ = std::make_unique<Supervisor>(
        options, clock_, [this](const TrainerId& id, const TrainerExit& exit) {
          MutexLock lock(mu_);
          exits_[id.rank] = exit;
        });
  }
  void Start(int rank, const std::string& script) {
    supervisor_->Start({{"job", 1, rank}, {"sh", "-c", script}, {}, {}, LogPath(rank)});
  }
  std::string LogPath(int rank) const {
    return dir_.path() + "/job/rank-" + std::to_string(rank) + ".log";
  }
  TrainerExit WaitForExit(int rank) {
    EXPECT_TRUE(Eventually([&] {
      MutexLock lock(mu_);
      return exits_.count(rank) > 0;
    }));
    MutexLock lock(mu_);
    return exits_[rank];
  }
  std::string Log(int rank) const {
    std::ifstream file(LogPath(rank));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  testing::TempDir dir_;
  SystemClock clock_;
  Mutex mu_;
  std::map<int, TrainerExit> exits_;
  std::unique_ptr<Supervisor> supervisor_;
};

TEST_F(SupervisorTest, ReportsExitWithTheLastLines) {
  Make();
  Start(0, "echo one; echo two >&2; printf unfinished; exit 3");
  const TrainerExit exit = WaitForExit(0);
  EXPECT_EQ(exit.exit_code, 3);
  EXPECT_EQ(exit.signal, 0);
  EXPECT_EQ(exit.reason, "");
  EXPECT_THAT(exit.log_tail,
              ElementsAre(EndsWith(" one"), EndsWith(" two"), EndsWith(" unfinished")));
  EXPECT_THAT(Log(0), HasSubstr("Z two\n"));
}

TEST_F(SupervisorTest, NamesAFailureOfNccl) {
  Make();
  Start(0, "echo 'NCCL: reduce timed out'; exit 8");
  Start(1, "kill -ABRT $$");
  const TrainerExit exit = WaitForExit(0);
  EXPECT_EQ(exit.exit_code, 8);
  EXPECT_EQ(exit.reason, "NCCL_FAILED");
  EXPECT_THAT(exit.log_tail, ElementsAre(EndsWith("NCCL: reduce timed out")));
  EXPECT_EQ(WaitForExit(1).reason, "");
}

TEST_F(SupervisorTest, KeepsTwentyLinesOfManyAndCutsLongOnes) {
  Make();
  Start(0, "seq 1000; head -c 10000 /dev/zero | tr '\\0' x; echo; exit 0");
  const TrainerExit exit = WaitForExit(0);
  ASSERT_EQ(exit.log_tail.size(), RankLog::kTailLines);
  EXPECT_THAT(exit.log_tail[0], EndsWith(" 982"));
  EXPECT_THAT(exit.log_tail.back(), EndsWith("[cut]"));
  EXPECT_LT(exit.log_tail.back().size(), RankLog::kMaxLineBytes + 100);
}

TEST_F(SupervisorTest, LinesAreValidUtf8WhateverIsPrinted) {
  Make();
  // Bad bytes, a zero, and a line of euro signs whose cut goes through one of them.
  Start(0,
        "printf 'bad \\377\\376 zero \\000 end\\n'; "
        "yes \"$(printf 'x\\342\\202\\254\\342\\202\\254')\" | head -1500 | tr -d '\\n'");
  const TrainerExit exit = WaitForExit(0);
  ASSERT_EQ(exit.log_tail.size(), 2u);
  EXPECT_THAT(exit.log_tail[0], EndsWith(std::string(" bad ?? zero \0 end", 18)));
  EXPECT_THAT(exit.log_tail[1], EndsWith("[cut]"));
  EXPECT_EQ(ValidUtf8(exit.log_tail[1]), exit.log_tail[1]);
  EXPECT_THAT(Log(0), HasSubstr(" end\n"));
}

TEST_F(SupervisorTest, EndlessOutputKeepsNobodyWaiting) {
  Make();
  Start(0, "exec yes");
  Start(1, "sleep 1000");
  ASSERT_TRUE(Eventually([&] { return !Log(0).empty(); }));
  supervisor_->Stop({"job", 1, 1}, 20'000'000, "job canceled");
  EXPECT_EQ(WaitForExit(1).signal, SIGTERM);
  supervisor_->Stop({"job", 1, 0}, 20'000'000, "job canceled");
  EXPECT_EQ(WaitForExit(0).signal, SIGTERM);
}

TEST_F(SupervisorTest, ClosedOutputCostsNoProcessorTime) {
  Make();
  const std::clock_t before = std::clock();
  Start(0, "exec >&- 2>&-; sleep 1; exit 4");
  EXPECT_EQ(WaitForExit(0).exit_code, 4);
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 2);
}

TEST_F(SupervisorTest, SignalsAreReported) {
  Make();
  Start(0, "kill -SEGV $$");
  EXPECT_EQ(WaitForExit(0).signal, SIGSEGV);
}

TEST_F(SupervisorTest, StopTermsAndKillsWhatIgnoresIt) {
  Make();
  Start(0, "sleep 1000");
  Start(1, "trap '' TERM; echo ready; while true; do sleep 0.02; done");
  ASSERT_TRUE(Eventually([&] { return Log(1).find("ready") != std::string::npos; }));
  supervisor_->Stop({"job", 1, 0}, 20'000'000, "job canceled");
  supervisor_->Stop({"job", 1, 1}, 200'000, "job canceled");
  const TrainerExit gentle = WaitForExit(0), hard = WaitForExit(1);
  EXPECT_EQ(gentle.signal, SIGTERM);
  EXPECT_EQ(gentle.reason, "STOPPED");
  EXPECT_EQ(gentle.message, "job canceled");
  EXPECT_EQ(hard.signal, SIGKILL);
}

TEST_F(SupervisorTest, SilenceIsKilledAndSaidSo) {
  Make(500'000);
  Start(0, "kill -STOP $$");
  const TrainerExit exit = WaitForExit(0);
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_EQ(exit.reason, "UNRESPONSIVE");
  EXPECT_THAT(exit.message, HasSubstr("500ms"));
}

TEST_F(SupervisorTest, SignsOfLifeKeepATrainer) {
  Make(1'000'000);
  Start(0, "sleep 1000");
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  while (std::chrono::steady_clock::now() < end) {
    supervisor_->Alive({"job", 1, 0});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(supervisor_->running(), 1u);
}

TEST_F(SupervisorTest, ProgramThatDoesNotExist) {
  Make();
  supervisor_->Start({{"job", 1, 0}, {"/no/such/trainer"}, {}, {}, LogPath(0)});
  const TrainerExit exit = WaitForExit(0);
  EXPECT_EQ(exit.reason, "START_FAILED");
  EXPECT_THAT(exit.message, HasSubstr("/no/such/trainer"));
  EXPECT_EQ(supervisor_->running(), 0u);
}

TEST_F(SupervisorTest, UnwritableLogIsAStartFailure) {
  Make();
  std::ofstream(dir_.path() + "/job") << "a file where a folder should be";
  Start(0, "true");
  EXPECT_EQ(WaitForExit(0).reason, "START_FAILED");
}

TEST_F(SupervisorTest, NothingSurvivesTheSupervisor) {
  Make();
  Start(0, "trap '' TERM; echo $$; while true; do sleep 0.05; done");
  ASSERT_TRUE(Eventually([&] { return !Log(0).empty(); }));
  const std::string log = Log(0);
  const pid_t pid = std::stoi(log.substr(log.find(' ')));
  ASSERT_EQ(kill(pid, 0), 0);
  supervisor_.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(exits_[0].signal, SIGKILL);
}

}  // namespace
}  // namespace fedshard::supervisor
