#include "worker/trainer/translate.h"

#include "common/utf8.h"

namespace fedshard::trainer {

RankStart TranslateStart(const v1::Start& start) {
  return {start.spec().SerializeAsString(), start.job(),          start.rank(), start.generation(),
          start.federation_generation(),    start.data_address(), start.cpu(),  start.gpu()};
}

std::optional<Directive> TranslateDirective(const v1::RankDirective& directive) {
  if (directive.has_plan()) {
    Plan plan;
    plan.round = directive.plan().round();
    plan.attempt = directive.plan().attempt();
    for (const v1::PlanParticipant& participant : directive.plan().participants()) {
      plan.weights.emplace_back(participant.group(), participant.weight());
    }
    return plan;
  }
  if (!directive.has_decision()) return std::nullopt;
  const v1::RoundDecision& proto = directive.decision();
  Decision decision;
  decision.round = proto.round();
  decision.attempt = proto.attempt();
  decision.commit = proto.commit();
  decision.evaluate = proto.evaluate();
  decision.finish = proto.finish();
  decision.message = proto.message();
  if (proto.has_checkpoint()) {
    decision.checkpoint = {proto.checkpoint().step(), proto.checkpoint().tokens(),
                           proto.checkpoint().next_sample()};
  }
  if (proto.has_next()) {
    const v1::RoundAssignment& next = proto.next();
    decision.next = {next.round(),
                     next.steps(),
                     next.lease().first_sample(),
                     next.lease().sample_count(),
                     next.first_step(),
                     next.committed_tokens(),
                     next.tokens_per_step(),
                     next.must_align()};
  }
  return decision;
}

v1::AttachRequest TranslateSteps(const std::vector<StepRecord>& steps) {
  v1::AttachRequest request;
  for (const StepRecord& step : steps) {
    v1::StepRecord& proto = *request.mutable_rank_report()->mutable_steps()->add_steps();
    proto.set_step(step.step);
    proto.set_tokens(step.tokens);
    proto.set_loss(step.loss);
    proto.set_gradient_norm(step.gradient_norm);
    proto.set_learning_rate(step.learning_rate);
    proto.set_seconds(step.seconds);
    proto.set_skipped(step.skipped);
  }
  return request;
}

v1::AttachRequest TranslateReady(const GroupReady& ready) {
  v1::AttachRequest request;
  v1::GroupReady& proto = *request.mutable_rank_report()->mutable_group_ready();
  proto.set_round(ready.round);
  proto.set_steps(ready.steps);
  proto.set_tokens(ready.tokens);
  proto.set_first_loss(ready.first_loss);
  proto.set_last_loss(ready.last_loss);
  proto.set_step_seconds(ready.step_seconds);
  proto.set_skipped_steps(ready.skipped_steps);
  return request;
}

v1::AttachRequest TranslateVote(const Vote& vote) {
  v1::AttachRequest request;
  v1::RankVote& proto = *request.mutable_rank_report()->mutable_vote();
  proto.set_round(vote.round);
  proto.set_attempt(vote.attempt);
  proto.set_shard_hash(vote.shard_hash);
  proto.set_shard_bytes(vote.shard_bytes);
  proto.set_replica_bytes(vote.replica_bytes);
  proto.set_federation_bytes(vote.federation_bytes);
  proto.set_averaging_seconds(vote.averaging_seconds);
  proto.set_parameters(vote.parameters);
  proto.set_padded_parameters(vote.padded_parameters);
  return request;
}

v1::AttachRequest TranslateEvaluation(const Evaluation& evaluation) {
  v1::AttachRequest request;
  v1::EvaluationReport& proto = *request.mutable_rank_report()->mutable_evaluation();
  proto.set_round(evaluation.round);
  proto.set_loss_sum(evaluation.loss_sum);
  proto.set_tokens(evaluation.tokens);
  return request;
}

v1::AttachRequest TranslateSummary(const Summary& summary) {
  v1::AttachRequest request;
  v1::JobSummary& proto = *request.mutable_rank_report()->mutable_summary();
  proto.set_parameter_hash(summary.parameter_hash);
  for (const uint32_t token : summary.sample_tokens) proto.add_sample_tokens(token);
  return request;
}

v1::AttachRequest TranslateCheckpoint(const CheckpointOutcome& outcome) {
  v1::AttachRequest request;
  v1::CheckpointReport& proto = *request.mutable_rank_report()->mutable_checkpoint();
  proto.set_step(outcome.step);
  proto.set_path(outcome.path);
  proto.set_bytes(outcome.bytes);
  proto.set_seconds(outcome.seconds);
  proto.set_error(ValidUtf8(outcome.error));
  return request;
}

v1::AttachRequest TranslateFailure(const std::string& reason, const std::string& message) {
  v1::AttachRequest request;
  v1::RankFailure& proto = *request.mutable_rank_report()->mutable_failure();
  proto.set_reason(reason);
  proto.set_message(message);
  return request;
}

}  // namespace fedshard::trainer
