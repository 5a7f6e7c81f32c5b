#include "worker/trainer/round_participant.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace fedshard::trainer {
namespace {

constexpr int64_t kReportEveryUs = 200'000;

// A decision waits for the slowest group, so a wait may be long when a round is: a group that takes
// ten times as long as this one is not coming. At least ten minutes, for starting on a busy
// machine.
constexpr int64_t kLeastPatienceUs = 600'000'000;
constexpr int64_t kPatienceInRounds = 10;

SentBytes Difference(const SentBytes& now, const SentBytes& before) {
  return {now.shard - before.shard, now.replica - before.replica,
          now.federation - before.federation};
}

void Add(SentBytes& sum, const SentBytes& more) {
  sum.shard += more.shard;
  sum.replica += more.replica;
  sum.federation += more.federation;
}

}  // namespace

RoundParticipant::RoundParticipant(const Settings& settings, int32_t rank, Control& control,
                                   RankModel& model, const Clock& clock)
    : settings_(settings),
      rank_(rank),
      at_(settings.mesh.CoordinatesOf(rank)),
      control_(control),
      model_(model),
      clock_(clock),
      patience_us_(kLeastPatienceUs) {}

void RoundParticipant::Run() {
  Vote start;
  start.shard_hash = model_.ShardHash();
  start.parameters = model_.parameters();
  start.padded_parameters = model_.padded_parameters();
  start.attempt = 1;
  control_.SendVote(start);
  Decision decision = AwaitDecision(0);
  while (true) {
    Apply(decision);
    if (decision.evaluate) Evaluate(decision.round);
    if (decision.checkpoint) model_.SaveCheckpoint(*decision.checkpoint);
    if (decision.finish) return Finish();
    if (!decision.next) throw Failure("INTERNAL", "a decision without a next assignment");
    Train(*decision.next);
    decision = Conclude(decision.next->round);
  }
}

Decision RoundParticipant::AwaitDecision(int64_t round) {
  while (true) {
    const Directive directive = control_.Next(patience_us_);
    const auto* decision = std::get_if<Decision>(&directive);
    // Only a commit ends the start; anything else is followed by a stop.
    if (decision != nullptr && decision->round == round && decision->commit) return *decision;
  }
}

void RoundParticipant::Train(const Assignment& assignment) {
  const int64_t started_us = clock_.Now().steady_us;
  const int64_t samples = settings_.samples_per_step();
  if (assignment.sample_count != assignment.steps * samples) {
    throw Failure("INTERNAL",
                  absl::StrCat("round ", assignment.round, " leases ", assignment.sample_count,
                               " samples for ", assignment.steps, " steps of ", samples));
  }
  LogInfo(absl::StrCat("round ", assignment.round, " samples [", assignment.first_sample, ", ",
                       assignment.first_sample + assignment.sample_count, ") steps ",
                       assignment.first_step + 1, "..", assignment.first_step + assignment.steps));
  federation_counted_ = model_.Sent().federation;
  GroupReady ready;
  ready.round = assignment.round;
  ready.steps = assignment.steps;
  for (int64_t i = 0; i < assignment.steps; ++i) {
    control_.ThrowIfStopped();
    if (BeginsAverage(assignment, i)) model_.BeginAverage();
    const double learning_rate = settings_.schedule.At(
        assignment.committed_tokens + i * assignment.tokens_per_step, assignment.tokens_per_step);
    const SentBytes before = model_.Sent();
    const int64_t step_started_us = clock_.Now().steady_us;
    const int64_t step = assignment.first_step + i + 1;
    const StepOutcome outcome =
        model_.Step(step, assignment.first_sample + i * samples, learning_rate);
    const double seconds = static_cast<double>(clock_.Now().steady_us - step_started_us) * 1e-6;
    SentBytes by_step = Difference(model_.Sent(), before);
    by_step.federation = 0;  // Averaging may run beside the steps and between them; see VoteOn.
    Add(sent_, by_step);
    if (outcome.skipped) {
      ++ready.skipped_steps;
    } else {
      // The first that counts: all before it were skipped.
      if (ready.skipped_steps == i) ready.first_loss = outcome.loss;
      ready.last_loss = outcome.loss;
    }
    ready.tokens += outcome.tokens;
    ready.step_seconds += seconds;
    if (first_of_group()) {
      ReportStep({step, outcome.tokens, outcome.loss, outcome.gradient_norm, learning_rate, seconds,
                  outcome.skipped});
    }
  }
  patience_us_ =
      std::max(kLeastPatienceUs, kPatienceInRounds * (clock_.Now().steady_us - started_us));
  ReportCheckpoints(/*wait=*/false);
  if (first_of_group()) {
    FlushSteps();
    control_.SendReady(ready);
  }
}

bool RoundParticipant::BeginsAverage(const Assignment& assignment, int64_t index) const {
  const int64_t overlap = settings_.federation.overlap_steps;
  return overlap > 0 && !assignment.must_align && index > 0 && index == assignment.steps - overlap;
}

Decision RoundParticipant::Conclude(int64_t round) {
  while (true) {
    const Directive directive = control_.Next(patience_us_);
    if (const auto* plan = std::get_if<Plan>(&directive)) {
      if (plan->round == round) VoteOn(*plan);
      continue;
    }
    const Decision& decision = std::get<Decision>(directive);
    if (decision.round != round) continue;
    if (decision.commit) return decision;
    // The attempt is off; the parameters are as after the last step. A new plan, or a stop,
    // follows.
    LogWarning(absl::StrCat("round ", round, " attempt ", decision.attempt,
                            " aborted: ", decision.message));
    if (std::exchange(average_pending_, false)) model_.DropAverage();
  }
}

void RoundParticipant::VoteOn(const Plan& plan) {
  Vote vote;
  vote.round = plan.round;
  vote.attempt = plan.attempt;
  if (settings_.averages) {
    double weight = -1;
    for (const auto& [group, group_weight] : plan.weights) {
      if (group == at_.group) weight = group_weight;
    }
    if (weight < 0) throw Failure("INTERNAL", "a plan without this group");
    const int64_t started_us = clock_.Now().steady_us;
    vote.shard_hash = model_.Average(weight);
    average_pending_ = true;
    vote.averaging_seconds = static_cast<double>(clock_.Now().steady_us - started_us) * 1e-6;
    const int64_t between_groups = model_.Sent().federation;
    sent_.federation += between_groups - std::exchange(federation_counted_, between_groups);
  } else {
    vote.shard_hash = model_.ShardHash();
  }
  vote.shard_bytes = sent_.shard;
  vote.replica_bytes = sent_.replica;
  vote.federation_bytes = sent_.federation;
  control_.SendVote(vote);
}

void RoundParticipant::Apply(const Decision& decision) {
  sent_ = {};
  if (std::exchange(average_pending_, false)) {
    if (decision.commit) {
      const SentBytes before = model_.Sent();
      model_.CommitAverage();
      // Moments may have been averaged; the next round's vote tells of it.
      sent_ = Difference(model_.Sent(), before);
    } else {
      model_.DropAverage();
    }
  }
}

void RoundParticipant::Evaluate(int64_t round) {
  const auto [loss_sum, tokens] = model_.Evaluate();
  if (first_of_group()) control_.SendEvaluation({round, loss_sum, tokens});
}

void RoundParticipant::Finish() {
  // Everyone takes part in gathering, one speaks.
  Summary summary;
  summary.parameter_hash = model_.ParameterHash();
  summary.sample_tokens = model_.Sample();
  if (rank_ == 0) control_.SendSummary(summary);
  ReportCheckpoints(/*wait=*/true);
}

void RoundParticipant::ReportCheckpoints(bool wait) {
  for (const CheckpointOutcome& outcome : model_.CheckpointOutcomes(wait)) {
    if (!outcome.error.empty()) LogWarning(absl::StrCat("checkpoint: ", outcome.error));
    if (rank_ == 0) control_.SendCheckpoint(outcome);
  }
}

void RoundParticipant::ReportStep(const StepRecord& record) {
  unreported_.push_back(record);
  if (clock_.Now().steady_us - reported_us_ >= kReportEveryUs) FlushSteps();
}

void RoundParticipant::FlushSteps() {
  if (!unreported_.empty()) control_.SendSteps(std::exchange(unreported_, {}));
  reported_us_ = clock_.Now().steady_us;
}

}  // namespace fedshard::trainer
