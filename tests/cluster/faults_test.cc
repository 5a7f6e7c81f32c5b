// What a cluster does when things go wrong: processes killed and stopped, jobs canceled in every
// state, names and ports taken. After each case nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "common/testing/eventually.h"
#include "tests/cluster/mini_cluster.h"
#include "tests/cluster/test_job.h"

namespace fedshard::testing {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Trains until something stops it.
TestJob LongJob(const std::string& name) {
  TestJob job;
  job.name = name;
  job.steps = 1'000'000;
  job.evaluation = "{every_rounds: 0, sequences: 4}";
  return job;
}

std::string Submitted(const MiniCluster& cluster, const JobFolder& folder, const TestJob& job) {
  const CommandResult result = cluster.Cli({"submit", folder.Write(job)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return job.name;
}

class Faults : public ::testing::Test {
 protected:
  JobFolder folder_;
  MiniCluster cluster_;
};

TEST_F(Faults, KilledTrainerFailsTheJobAndSaysWhoAndHow) {
  const std::string job = Submitted(cluster_, folder_, LongJob("killed"));
  cluster_.WaitForRounds(job, 2);
  ASSERT_EQ(cluster_.TrainerPids(1).size(), 4u);
  kill(cluster_.TrainerPids(1)[2], SIGKILL);
  const json failed = cluster_.WaitForState(job, {"FAILED"});
  EXPECT_EQ(failed["reason"], "TRAINER_KILLED");
  EXPECT_THAT(failed["message"], HasSubstr("node-1"));
  EXPECT_THAT(failed["message"], ContainsRegex("rank [0-7]"));
  EXPECT_THAT(failed["message"], HasSubstr("SIGKILL"));
  EXPECT_THAT(failed["message"], HasSubstr("round"));  // The last lines of its log.
  cluster_.WaitForFreeSlots();
  EXPECT_TRUE(cluster_.TrainerPids(0).empty());
  EXPECT_TRUE(cluster_.TrainerPids(1).empty());
  // The cluster is as good as new.
  TestJob next;
  next.name = "next";
  EXPECT_EQ(cluster_.Cli({"submit", folder_.Write(next), "--wait"}).exit_code, 0);
  cluster_.StopAndCheck();
}

TEST_F(Faults, StoppedTrainerIsFoundAndKilled) {
  const std::string job = Submitted(cluster_, folder_, LongJob("stopped"));
  cluster_.WaitForRounds(job, 1);
  kill(cluster_.TrainerPids(0)[1], SIGSTOP);
  const json failed = cluster_.WaitForState(job, {"FAILED"});
  EXPECT_EQ(failed["reason"], "TRAINER_UNRESPONSIVE");
  EXPECT_THAT(failed["message"], HasSubstr("node-0"));
  cluster_.WaitForFreeSlots();
  cluster_.StopAndCheck();
}

TEST_F(Faults, KilledWorkerTakesItsTrainersAndFailsTheJob) {
  const std::string job = Submitted(cluster_, folder_, LongJob("worker"));
  cluster_.WaitForRounds(job, 1);
  kill(cluster_.worker_pid(1), SIGKILL);
  const json failed = cluster_.WaitForState(job, {"FAILED"});
  EXPECT_EQ(failed["reason"], "NODE_LOST");
  EXPECT_THAT(failed["message"], HasSubstr("node-1"));
  cluster_.WaitForFreeSlots();
  EXPECT_TRUE(cluster_.TrainerPids(0).empty());
  EXPECT_THAT(cluster_.Cli({"get", "nodes"}).out, HasSubstr("LOST"));
  cluster_.StopAndCheck();
}

TEST_F(Faults, KilledCoordinatorLeavesNoTrainerBehindOnceTheWorkersStop) {
  const std::string job = Submitted(cluster_, folder_, LongJob("coordinator"));
  cluster_.WaitForRounds(job, 1);
  kill(cluster_.coordinator_pid(), SIGKILL);
  cluster_.StopAndCheck();
}

TEST_F(Faults, CancelWhileRunning) {
  const std::string job = Submitted(cluster_, folder_, LongJob("running"));
  cluster_.WaitForRounds(job, 1);
  EXPECT_EQ(cluster_.Cli({"cancel", job}).exit_code, 0);
  const json canceled = cluster_.WaitForState(job, {"CANCELED"});
  EXPECT_EQ(canceled["reason"], "CANCELED_BY_USER");
  EXPECT_TRUE(cluster_.TrainerPids(0).empty());
  EXPECT_TRUE(cluster_.TrainerPids(1).empty());
  EXPECT_EQ(cluster_.Cli({"cancel", job}).exit_code, 0) << "a repeat is no error";
  cluster_.StopAndCheck();
}

TEST_F(Faults, CancelWhileStartingAndWhileQueued) {
  const std::string first = Submitted(cluster_, folder_, LongJob("first"));
  const std::string second = Submitted(cluster_, folder_, LongJob("second"));
  EXPECT_EQ(cluster_.Job(second)["state"], "JOB_STATE_QUEUED");
  EXPECT_EQ(cluster_.Job(second)["reason"], "WAITING_FOR_SLOTS");
  EXPECT_EQ(cluster_.Cli({"cancel", second}).exit_code, 0);
  EXPECT_EQ(cluster_.Job(second)["state"], "JOB_STATE_CANCELED");
  EXPECT_EQ(cluster_.Cli({"cancel", first}).exit_code, 0);
  cluster_.WaitForState(first, {"CANCELED"});
  cluster_.WaitForFreeSlots();
  cluster_.StopAndCheck();
}

TEST_F(Faults, CancelAfterTheEndIsRefused) {
  TestJob job;
  job.name = "done";
  ASSERT_EQ(cluster_.Cli({"submit", folder_.Write(job), "--wait"}).exit_code, 0);
  const CommandResult refused = cluster_.Cli({"cancel", "done"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("COMPLETED"));
  EXPECT_EQ(cluster_.Cli({"cancel", "nosuch"}).exit_code, 3);
}

TEST_F(Faults, TwoJobsShareTheCluster) {
  TestJob left, right;
  left.name = "left";
  right.name = "right";
  left.shards = right.shards = 1;  // 4 ranks each.
  ASSERT_EQ(cluster_.Cli({"submit", folder_.Write(left)}).exit_code, 0);
  ASSERT_EQ(cluster_.Cli({"submit", folder_.Write(right)}).exit_code, 0);
  const json first = cluster_.WaitForState("left", {"COMPLETED", "FAILED"});
  const json second = cluster_.WaitForState("right", {"COMPLETED", "FAILED"});
  EXPECT_EQ(first["state"], "JOB_STATE_COMPLETED");
  EXPECT_EQ(first["result"]["parameter_hash"], second["result"]["parameter_hash"]);
  cluster_.StopAndCheck();
}

TEST_F(Faults, DuplicateNameIsRefused) {
  TestJob job;
  job.name = "twin";
  ASSERT_EQ(cluster_.Cli({"submit", folder_.Write(job)}).exit_code, 0);
  const CommandResult refused = cluster_.Cli({"submit", folder_.Write(job)});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("twin"));
  cluster_.WaitForState("twin", {"COMPLETED"});
}

TEST_F(Faults, LargerThanTheClusterWaitsAndSaysSo) {
  TestJob job = LongJob("huge");
  job.replicas = 8;
  ASSERT_EQ(cluster_.Cli({"submit", folder_.Write(job)}).exit_code, 0);
  const json waiting = cluster_.Job("huge");
  EXPECT_EQ(waiting["state"], "JOB_STATE_QUEUED");
  EXPECT_THAT(waiting["message"], HasSubstr("32"));
  EXPECT_EQ(cluster_.Cli({"cancel", "huge"}).exit_code, 0);
}

TEST_F(Faults, SecondCoordinatorOnThePortOrTheDirectoryIsRefused) {
  const CommandResult port =
      RunCommand({Binary("fedshard-coordinator"), "--listen", cluster_.address(),
                  "--data-directory", folder_.path() + "/other"});
  EXPECT_NE(port.exit_code, 0);
  EXPECT_THAT(port.err, HasSubstr(cluster_.address()));
  const CommandResult directory =
      RunCommand({Binary("fedshard-coordinator"), "--listen", "127.0.0.1:0", "--data-directory",
                  cluster_.folder() + "/coordinator"});
  EXPECT_NE(directory.exit_code, 0);
  EXPECT_THAT(directory.err, HasSubstr(cluster_.folder()));
}

TEST(Worker, WrongCoordinatorAddressIsReported) {
  const JobFolder folder;
  const CommandResult result =
      RunCommand({Binary("fedshard-worker"), "--coordinator", "127.0.0.1:1", "--node-id", "lost",
                  "--slots", "1", "--data-address", "127.0.0.1", "--log-directory", folder.path(),
                  "--connect-timeout", "1s"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
}

TEST(Cli, UnreachableCoordinatorIsExitFive) {
  const CommandResult result = Fedshard({"get", "jobs", "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
}

TEST(LocalRunFaults, InterruptLeavesNothing) {
  const JobFolder folder;
  const std::string job = folder.Write(LongJob("interrupted"));
  Subprocess::Options options;
  options.argv = {Binary("fedshard"), "local", "run", job, "--keep", folder.path() + "/kept"};
  auto run = Subprocess::Start(options);
  ASSERT_TRUE(run.ok()) << run.status();
  // Its own trainers, that is: other clusters may run on the machine. They write once they are
  // attached.
  const std::string log = folder.path() + "/kept/trainers/interrupted/rank-0.log";
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(log); }));
  kill((*run)->pid(), SIGINT);
  const auto exit = (*run)->WaitFor(30'000'000);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->exit_code, 130);
  EXPECT_TRUE(ProcessesNaming(folder.path()).empty());
}

}  // namespace
}  // namespace fedshard::testing
