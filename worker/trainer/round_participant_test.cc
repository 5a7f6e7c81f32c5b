// The rank's side of the round protocol, against a scripted control plane and a fake model: votes,
// leases, learning rates, byte counts, averages that are applied or dropped, evaluation points, and
// the end.
#include "worker/trainer/round_participant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <set>
#include <utility>

#include "common/testing/status_matchers.h"

namespace fedshard::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Plays directives in order and records what is sent, as one line each.
class ScriptedControl : public Control {
 public:
  void SendSteps(const std::vector<StepRecord>& steps) override {
    for (const StepRecord& step : steps) steps_.push_back(step);
    ++step_reports_;
  }
  void SendReady(const GroupReady& ready) override {
    log_.push_back("ready " + std::to_string(ready.round) + " steps " +
                   std::to_string(ready.steps));
    ready_.push_back(ready);
  }
  void SendVote(const Vote& vote) override {
    log_.push_back("vote " + std::to_string(vote.round) + "." + std::to_string(vote.attempt) +
                   " hash " + std::to_string(vote.shard_hash));
    votes_.push_back(vote);
  }
  void SendEvaluation(const Evaluation& evaluation) override {
    log_.push_back("evaluation " + std::to_string(evaluation.round));
  }
  void SendSummary(const Summary& summary) override {
    log_.push_back("summary " + summary.parameter_hash);
  }
  void SendCheckpoint(const CheckpointOutcome& outcome) override {
    log_.push_back("checkpoint " + std::to_string(outcome.step) + " " + outcome.path +
                   outcome.error);
  }
  Directive Next(int64_t patience_us) override {
    patience_us_ = patience_us;
    ThrowIfStopped();
    if (script_.empty()) throw Stopped(kExitStopped, "end of the script");
    Directive next = script_.front();
    script_.pop_front();
    return next;
  }
  void ThrowIfStopped() override {
    if (stop_at_step_ >= 0 && static_cast<int>(steps_seen_) >= stop_at_step_) {
      throw Stopped(kExitStopped, "asked to");
    }
  }

  std::deque<Directive> script_;
  std::vector<std::string> log_;
  std::vector<StepRecord> steps_;
  std::vector<GroupReady> ready_;
  std::vector<Vote> votes_;
  int step_reports_ = 0;
  int stop_at_step_ = -1;
  size_t steps_seen_ = 0;
  int64_t patience_us_ = 0;
};

// A "model" whose parameters are one number.
class FakeModel : public RankModel {
 public:
  FakeModel(ScriptedControl& control, FakeClock& clock) : control_(control), clock_(clock) {}
  StepOutcome Step(int64_t step, int64_t first_sample, double learning_rate) override {
    ++control_.steps_seen_;
    calls_.push_back("step " + std::to_string(step) + " at " + std::to_string(first_sample));
    rates_.push_back(learning_rate);
    parameter_ += 1;
    sent_.shard += 100;
    clock_.Advance(step_us_);
    if (skipped_.count(step) > 0) return {std::nan(""), std::nan(""), 64, true};
    return {10.0 - static_cast<double>(step), 1.0, 64};
  }
  uint64_t ShardHash() override { return parameter_; }
  void BeginAverage() override { calls_.push_back("begin"); }
  uint64_t Average(double weight) override {
    calls_.push_back("average " + std::to_string(weight).substr(0, 4));
    sent_.federation += 7;
    return 1000 + parameter_;
  }
  void CommitAverage() override {
    calls_.push_back("commit");
    sent_.federation += 20;
  }
  void DropAverage() override { calls_.push_back("drop"); }
  std::pair<double, int64_t> Evaluate() override {
    calls_.push_back("evaluate");
    sent_.shard += 1'000'000;  // Must not be counted.
    return {5.0, 10};
  }
  std::string ParameterHash() override { return "abc"; }
  void SaveCheckpoint(const CheckpointOrder& order) override {
    calls_.push_back("save " + std::to_string(order.step) + " " + std::to_string(order.tokens) +
                     " " + std::to_string(order.next_sample));
    saved_.push_back({order.step, "/c", 100, 0.5, ""});
  }
  std::vector<CheckpointOutcome> CheckpointOutcomes(bool wait) override {
    if (wait && !saved_.empty()) calls_.push_back("wait for checkpoints");
    return std::exchange(saved_, {});
  }
  std::vector<uint32_t> Sample() override {
    calls_.push_back("sample");
    return {};
  }
  SentBytes Sent() override { return sent_; }
  int64_t parameters() override { return 11; }
  int64_t padded_parameters() override { return 12; }

  ScriptedControl& control_;
  FakeClock& clock_;
  int64_t step_us_ = 0;
  std::vector<std::string> calls_;
  std::vector<double> rates_;
  std::vector<CheckpointOutcome> saved_;
  std::set<int64_t> skipped_;
  uint64_t parameter_ = 0;
  SentBytes sent_;
};

class RoundParticipantTest : public ::testing::Test {
 protected:
  RoundParticipantTest() {
    settings_.mesh = {2, 1, 2};
    settings_.averages = true;
    settings_.micro_batch = 2;
    settings_.schedule.type = engine::LearningRateSchedule::Type::kCosine;
    settings_.schedule.peak = 1;
    settings_.schedule.total_tokens = 1000;
  }
  Decision Commit(int64_t round, std::optional<Assignment> next, bool evaluate = false) {
    Decision decision;
    decision.round = round;
    decision.commit = true;
    decision.evaluate = evaluate;
    decision.next = next;
    decision.finish = !next.has_value();
    return decision;
  }
  Assignment Round(int64_t round, int64_t steps, int64_t first_sample) {
    // 4 samples a step: B = 2 on 2 ranks.
    return {round, steps, first_sample, steps * 4, (round - 1) * 2, (round - 1) * 256, 128};
  }
  void Run(int32_t rank) { RoundParticipant(settings_, rank, control_, model_, clock_).Run(); }

  Settings settings_;
  FakeClock clock_;
  ScriptedControl control_;
  FakeModel model_{control_, clock_};
};

TEST_F(RoundParticipantTest, TwoRoundsToTheEnd) {
  control_.script_ = {Commit(0, Round(1, 2, 0), true), Plan{1, 1, {{0, 0.25}, {1, 0.75}}},
                      Commit(1, Round(2, 1, 16)), Plan{2, 1, {{0, 0.5}, {1, 0.5}}},
                      Commit(2, std::nullopt, true)};
  Run(0);
  EXPECT_THAT(control_.log_, ElementsAre("vote 0.1 hash 0", "evaluation 0", "ready 1 steps 2",
                                         "vote 1.1 hash 1002", "ready 2 steps 1",
                                         "vote 2.1 hash 1003", "evaluation 2", "summary abc"));
  EXPECT_THAT(model_.calls_,
              ElementsAre("evaluate", "step 1 at 0", "step 2 at 4", "average 0.25", "commit",
                          "step 3 at 16", "average 0.50", "commit", "evaluate", "sample"));
  EXPECT_EQ(control_.votes_[0].parameters, 11);
  EXPECT_EQ(control_.votes_[0].padded_parameters, 12);
  // Bytes of the round's steps and averaging, not of evaluations.
  EXPECT_EQ(control_.votes_[1].shard_bytes, 200);
  EXPECT_EQ(control_.votes_[1].federation_bytes, 7);
  EXPECT_EQ(control_.votes_[2].shard_bytes, 100);
  EXPECT_EQ(control_.votes_[2].federation_bytes, 20 + 7) << "with what the commit before it sent";
  // The first and the last loss of the round, and the tokens of its steps.
  EXPECT_EQ(control_.ready_[0].first_loss, 9);
  EXPECT_EQ(control_.ready_[0].last_loss, 8);
  EXPECT_EQ(control_.ready_[0].tokens, 128);
  ASSERT_EQ(control_.steps_.size(), 3u);
  EXPECT_EQ(control_.steps_[2].step, 3);
}

TEST_F(RoundParticipantTest, LearningRateFollowsCommittedTokens) {
  control_.script_ = {Commit(0, Round(1, 2, 0)), Plan{1, 1, {{0, 0.5}, {1, 0.5}}},
                      Commit(1, Round(2, 2, 16))};
  EXPECT_THROW(Run(0), Stopped);
  ASSERT_EQ(model_.rates_.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(model_.rates_[i], settings_.schedule.At(128 * i, 128)) << i;
}

TEST_F(RoundParticipantTest, OnlyTheFirstRankOfAGroupSpeaksForIt) {
  control_.script_ = {Commit(0, Round(1, 2, 8), true), Plan{1, 1, {{0, 0.25}, {1, 0.75}}},
                      Commit(1, std::nullopt)};
  Run(3);
  EXPECT_THAT(control_.log_, ElementsAre("vote 0.1 hash 0", "vote 1.1 hash 1002"));
  EXPECT_THAT(model_.calls_, ElementsAre("evaluate", "step 1 at 8", "step 2 at 12", "average 0.75",
                                         "commit", "sample"));
  EXPECT_TRUE(control_.steps_.empty());
}

TEST_F(RoundParticipantTest, AbortedAttemptDropsTheAverageAndANewPlanMakesAnother) {
  Decision abort;
  abort.round = 1;
  abort.attempt = 1;
  control_.script_ = {Commit(0, Round(1, 1, 0)), Plan{1, 1, {{0, 0.5}, {1, 0.5}}}, abort,
                      Plan{1, 2, {{0, 1.0}}}, Commit(1, std::nullopt)};
  Run(0);
  EXPECT_THAT(model_.calls_, ElementsAre("step 1 at 0", "average 0.50", "drop", "average 1.00",
                                         "commit", "sample"));
  EXPECT_EQ(control_.votes_.back().attempt, 2);
}

TEST_F(RoundParticipantTest, MessagesOfOtherRoundsAreIgnored) {
  control_.script_ = {Commit(7, Round(8, 1, 0)), Commit(0, Round(1, 1, 0)),
                      Plan{5, 1, {{0, 1.0}}},    Commit(4, std::nullopt),
                      Plan{1, 1, {{0, 1.0}}},    Commit(1, std::nullopt)};
  Run(0);
  EXPECT_THAT(model_.calls_, ElementsAre("step 1 at 0", "average 1.00", "commit", "sample"));
}

TEST_F(RoundParticipantTest, WithoutAveragingTheVoteIsTheShardAsItIs) {
  settings_.averages = false;
  settings_.mesh = {1, 2, 2};
  Assignment first = Round(1, 1, 0);
  first.sample_count = 8;  // 4 ranks now.
  control_.script_ = {Commit(0, first), Plan{1, 1, {{0, 1.0}}}, Commit(1, std::nullopt)};
  Run(0);
  EXPECT_EQ(control_.votes_[1].shard_hash, 1u);
  EXPECT_THAT(model_.calls_, ElementsAre("step 1 at 0", "sample"));
}

TEST_F(RoundParticipantTest, ReportsStepsAFewTimesASecondAndAllBeforeReady) {
  control_.script_ = {Commit(0, Round(1, 10, 0))};
  model_.step_us_ = 70'000;
  EXPECT_THROW(Run(0), Stopped);
  ASSERT_EQ(control_.steps_.size(), 10u);
  // At once, then after every third step (210 ms), and the rest with the end of the round.
  EXPECT_LE(control_.step_reports_, 5);
  EXPECT_GE(control_.step_reports_, 4);
  EXPECT_NEAR(control_.steps_[4].seconds, 0.07, 1e-9);
  EXPECT_NEAR(control_.ready_[0].step_seconds, 0.7, 1e-9);
}

TEST_F(RoundParticipantTest, WaitsLongerForOthersAfterLongRounds) {
  control_.script_ = {Commit(0, Round(1, 2, 0)), Plan{1, 1, {{0, 0.5}, {1, 0.5}}}};
  model_.step_us_ = 1'000'000;
  EXPECT_THROW(Run(0), Stopped);
  EXPECT_EQ(control_.patience_us_, 600'000'000) << "ten minutes at least";
  control_.script_ = {Commit(0, Round(1, 2, 0)), Plan{1, 1, {{0, 0.5}, {1, 0.5}}}};
  model_.step_us_ = 1'800'000'000;
  EXPECT_THROW(Run(0), Stopped);
  EXPECT_EQ(control_.patience_us_, 36'000'000'000) << "ten rounds of an hour";
}

TEST_F(RoundParticipantTest, CheckpointsAreBegunAfterTheCommitAndReportedLater) {
  Decision first = Commit(1, Round(2, 1, 16));
  first.checkpoint = {2, 256, 16};
  Decision last = Commit(2, std::nullopt);
  last.checkpoint = {3, 384, 24};
  control_.script_ = {Commit(0, Round(1, 2, 0)), Plan{1, 1, {{0, 0.5}, {1, 0.5}}}, first,
                      Plan{2, 1, {{0, 0.5}, {1, 0.5}}}, last};
  Run(0);
  EXPECT_THAT(model_.calls_, ElementsAre("step 1 at 0", "step 2 at 4", "average 0.50", "commit",
                                         "save 2 256 16", "step 3 at 16", "average 0.50", "commit",
                                         "save 3 384 24", "sample", "wait for checkpoints"));
  EXPECT_THAT(control_.log_, ElementsAre("vote 0.1 hash 0", "ready 1 steps 2", "vote 1.1 hash 1002",
                                         "checkpoint 2 /c", "ready 2 steps 1", "vote 2.1 hash 1003",
                                         "summary abc", "checkpoint 3 /c"));
}

TEST_F(RoundParticipantTest, AveragingBeginsBeforeTheLastStepsUnlessGroupsMustAlign) {
  settings_.federation.overlap_steps = 1;
  Assignment last = Round(2, 2, 24);
  last.must_align = true;
  control_.script_ = {Commit(0, Round(1, 3, 0)), Plan{1, 1, {{0, 0.5}, {1, 0.5}}}, Commit(1, last),
                      Plan{2, 1, {{0, 0.5}, {1, 0.5}}}, Commit(2, std::nullopt)};
  Run(0);
  EXPECT_THAT(model_.calls_, ElementsAre("step 1 at 0", "step 2 at 4", "begin", "step 3 at 8",
                                         "average 0.50", "commit", "step 3 at 24", "step 4 at 28",
                                         "average 0.50", "commit", "sample"));
}

TEST_F(RoundParticipantTest, SkippedStepsAreCountedAndHaveNoLoss) {
  model_.skipped_ = {1, 3};
  control_.script_ = {Commit(0, Round(1, 3, 0)), Plan{1, 1, {{0, 0.5}, {1, 0.5}}},
                      Commit(1, std::nullopt)};
  Run(0);
  ASSERT_EQ(control_.ready_.size(), 1u);
  EXPECT_EQ(control_.ready_[0].skipped_steps, 2);
  EXPECT_EQ(control_.ready_[0].first_loss, 8) << "of step 2";
  EXPECT_EQ(control_.ready_[0].last_loss, 8);
  EXPECT_EQ(control_.ready_[0].tokens, 3 * 64) << "their samples are used";
  ASSERT_EQ(control_.steps_.size(), 3u);
  EXPECT_TRUE(control_.steps_[0].skipped);
  EXPECT_FALSE(control_.steps_[1].skipped);
}

TEST_F(RoundParticipantTest, StopsBetweenSteps) {
  control_.stop_at_step_ = 1;
  control_.script_ = {Commit(0, Round(1, 2, 0))};
  EXPECT_THROW(Run(0), Stopped);
  EXPECT_EQ(model_.calls_.size(), 1u);
}

TEST_F(RoundParticipantTest, ALeaseOfAnotherSizeIsRefused) {
  Assignment wrong = Round(1, 2, 0);
  wrong.sample_count = 9;
  control_.script_ = {Commit(0, wrong)};
  try {
    Run(0);
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.reason, "INTERNAL");
    EXPECT_THAT(failure.what(), HasSubstr("leases 9 samples"));
  }
}

}  // namespace
}  // namespace fedshard::trainer
