// Proves the live numbers: progress of the slowest group, means over groups, speed over the window,
// durations of decided rounds once each, and that ended jobs leave after the retention; and the
// lines of steps.jsonl.
#include "coordinator/service/telemetry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include "common/testing/temp_dir.h"
#include "coordinator/service/step_files.h"

namespace fedshard::service {
namespace {

constexpr int64_t kSecond = 1'000'000;

// A job with two groups of one rank each, on node-0.
core::State RunningState() {
  core::State state;
  core::Job& job = state.jobs["job"];
  job.spec.id = "job";
  job.spec.mesh = {2, 1, 1};
  job.spec.total_steps = 100;
  job.spec.samples_per_step = 4;
  job.spec.tokens_per_sample = 25;
  job.state = core::JobState::kRunning;
  for (int32_t i = 0; i < 2; ++i) {
    core::Group group;
    group.index = i;
    group.generation = 10 + i;
    group.ranks.push_back({{i, "node-0", i}, core::RankState::kRunning});
    job.groups.push_back(group);
  }
  return state;
}

StepReport Report(int32_t group, std::vector<StepRecord> steps) {
  StepReport report;
  report.from = {"node-0", "w1", "job", static_cast<core::Generation>(10 + group), group};
  report.steps = std::move(steps);
  return report;
}

uint64_t Count(const Histogram& histogram) {
  return std::accumulate(histogram.counts().begin(), histogram.counts().end(), uint64_t{0});
}

TEST(TelemetryTest, ProgressIsThatOfTheSlowestGroupAndMeansOverGroups) {
  core::State state = RunningState();
  state.jobs["job"].committed_steps = 2;
  Telemetry telemetry({});
  EXPECT_TRUE(telemetry.Report(state, Report(0, {{5, 100, 3.0, 1.0, 0.1, 0.5}}), 10 * kSecond));
  EXPECT_EQ(telemetry.ProgressOf(state.jobs["job"], 10 * kSecond).step, 2);
  EXPECT_TRUE(telemetry.Report(
      state, Report(1, {{3, 100, 9.0, 9.0, 0.1, 0.5}, {4, 100, 2.0, 2.0, 0.1, 0.5}}),
      10 * kSecond));
  const JobProgress progress = telemetry.ProgressOf(state.jobs["job"], 10 * kSecond);
  EXPECT_EQ(progress.step, 4);
  EXPECT_DOUBLE_EQ(*progress.loss, 2.5);
  EXPECT_DOUBLE_EQ(progress.gradient_norm, 1.5);
  EXPECT_DOUBLE_EQ(progress.learning_rate, 0.1);
  EXPECT_EQ(progress.groups.at(1).last.step, 4);
  EXPECT_EQ(Count(telemetry.step_seconds()), 3u);
  EXPECT_DOUBLE_EQ(telemetry.step_seconds().sum(), 1.5);
}

TEST(TelemetryTest, SpeedAndEtaFollowTheClockAndFallWhenNothingComes) {
  core::State state = RunningState();
  Telemetry telemetry({});
  // Two groups, each 100 tokens a second in steps of one second.
  for (int64_t step = 1; step <= 20; ++step) {
    for (int32_t group = 0; group < 2; ++group) {
      telemetry.Report(state, Report(group, {{step, 100, 1, 1, 0.1, 1.0}}), step * kSecond);
    }
    const JobProgress progress = telemetry.ProgressOf(state.jobs["job"], step * kSecond);
    EXPECT_NEAR(progress.tokens_per_second, 200, 1e-6) << step;
    ASSERT_TRUE(progress.eta_seconds.has_value());
    EXPECT_NEAR(*progress.eta_seconds, 100 - step, 1e-6);
  }
  EXPECT_NEAR(telemetry.ProgressOf(state.jobs["job"], 25 * kSecond).tokens_per_second, 100, 1e-6);
  const JobProgress stalled = telemetry.ProgressOf(state.jobs["job"], 60 * kSecond);
  EXPECT_EQ(stalled.tokens_per_second, 0);
  EXPECT_FALSE(stalled.eta_seconds.has_value());
}

TEST(TelemetryTest, ReportsOfOthersAreIgnored) {
  core::State state = RunningState();
  Telemetry telemetry({});
  StepReport report = Report(0, {{1, 100, 1, 1, 0.1, 1.0}});
  report.from.generation = 9;
  EXPECT_FALSE(telemetry.Report(state, report, kSecond));
  report = Report(0, {{1, 100, 1, 1, 0.1, 1.0}});
  report.from.node = "node-1";
  EXPECT_FALSE(telemetry.Report(state, report, kSecond));
  report = Report(0, {{1, 100, 1, 1, 0.1, 1.0}});
  report.from.job = "other";
  EXPECT_FALSE(telemetry.Report(state, report, kSecond));
  state.jobs["job"].state = core::JobState::kFailed;
  EXPECT_FALSE(telemetry.Report(state, Report(0, {{1, 100, 1, 1, 0.1, 1.0}}), kSecond));
  EXPECT_EQ(Count(telemetry.step_seconds()), 0u);
}

TEST(TelemetryTest, EachDecisionIsObservedOnce) {
  core::State state = RunningState();
  core::Job& job = state.jobs["job"];
  core::Round round;
  round.number = 1;
  round.started_us = 1 * kSecond;
  round.planned_us = 3 * kSecond;
  round.decided_us = 4 * kSecond;
  job.rounds.push_back(round);
  Telemetry telemetry({});
  core::RoundDecision decision;
  decision.round = 1;
  decision.attempt = 1;
  telemetry.Decided(job, decision);  // To one node,
  telemetry.Decided(job, decision);  // and to another.
  EXPECT_EQ(Count(telemetry.round_seconds()), 1u);
  EXPECT_DOUBLE_EQ(telemetry.round_seconds().sum(), 3);
  EXPECT_DOUBLE_EQ(telemetry.decision_seconds().sum(), 1);
}

TEST(TelemetryTest, EndedJobsLeaveAfterTheRetention) {
  core::State state = RunningState();
  Telemetry telemetry({10 * kSecond, 300 * kSecond});
  telemetry.Report(state, Report(0, {{1, 100, 4.0, 1, 0.1, 1.0}}), kSecond);
  core::Job& job = state.jobs["job"];
  job.state = core::JobState::kCompleted;
  job.ended.steady_us = 2 * kSecond;
  EXPECT_TRUE(telemetry.IsShown(job, 301 * kSecond));
  EXPECT_FALSE(telemetry.IsShown(job, 302 * kSecond));
  telemetry.Prune(state, 301 * kSecond);
  EXPECT_EQ(telemetry.ProgressOf(job, 301 * kSecond).groups.size(), 1u);
  telemetry.Prune(state, 302 * kSecond);
  EXPECT_TRUE(telemetry.ProgressOf(job, 302 * kSecond).groups.empty());
}

TEST(HistogramTest, ABoundBelongsToItsBucket) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 2.0, 2.5}) histogram.Observe(value);
  EXPECT_EQ(histogram.counts(), (std::vector<uint64_t>{2, 2, 1}));
  EXPECT_DOUBLE_EQ(histogram.sum(), 7.5);
}

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(StepFilesTest, WritesOneLinePerStepAtOnceAndBeginsAnew) {
  const testing::TempDir directory;
  const std::string path = directory.path() + "/jobs/job/steps.jsonl";
  {
    StepFiles files(directory.path());
    files.Write("job", 1, true,
                Report(1, {{1, 100, 2.5, 1, 0.1, 0.5}, {2, 100, NAN, 1, 0.1, 1, true}}));
    EXPECT_EQ(ReadFile(path),
              "{\"step\":1,\"group\":1,\"tokens\":100,\"loss\":2.5,\"gradient_norm\":1.0,"
              "\"learning_rate\":0.1,\"seconds\":0.5}\n"
              "{\"step\":2,\"group\":1,\"tokens\":100,\"loss\":null,\"gradient_norm\":1.0,"
              "\"learning_rate\":0.1,\"seconds\":1.0,\"skipped\":true}\n");
    files.Write("job", 0, true, Report(0, {{1, 100, 2.5, 1, 0.1, 0.5}}));
    files.Close("job");
  }
  StepFiles files(directory.path());
  files.Write("job", 0, false, Report(0, {{3, 100, 2.5, 1, 0.1, 0.5}}));
  const std::string text = ReadFile(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  StepFiles(directory.path()).Write("job", 0, true, Report(0, {{1, 100, 2.5, 1, 0.1, 0.5}}));
  const std::string anew = ReadFile(path);
  EXPECT_EQ(std::count(anew.begin(), anew.end(), '\n'), 1);
}

TEST(StepFilesTest, AFolderThatCannotBeMadeIsNoDisaster) {
  StepFiles files("/proc/no-such-folder");
  files.Write("job", 0, true, Report(0, {{1, 100, 2.5, 1, 0.1, 0.5}}));
  files.Write("job", 0, true, Report(0, {{2, 100, 2.5, 1, 0.1, 0.5}}));
  files.Close("job");
}

}  // namespace
}  // namespace fedshard::service
