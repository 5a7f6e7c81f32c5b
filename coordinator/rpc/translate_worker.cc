#include "coordinator/rpc/translate_worker.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "coordinator/rpc/names.h"

namespace fedshard::rpc {
namespace {

constexpr int32_t kMaxSlots = 4096;
constexpr int kMaxLabels = 64;
constexpr size_t kMaxTextBytes = 256;

void CheckText(const std::string& text, const std::string& field, bool required,
               Violations& violations) {
  if (text.size() > kMaxTextBytes) {
    violations.Add(field, absl::StrCat("at most ", kMaxTextBytes, " bytes"));
  }
  if (required && text.empty()) violations.Add(field, "must not be empty");
}

// Node and incarnation are the session's business.
template <typename Message>
core::RankId RankFromProto(const Message& message) {
  core::RankId rank;
  rank.job = message.job();
  rank.generation = message.generation();
  rank.rank = message.rank();
  return rank;
}

core::RankVote VoteFromProto(core::RankId from, const v1::RankVote& vote) {
  core::RankVote out;
  out.from = std::move(from);
  out.round = vote.round();
  out.attempt = vote.attempt();
  out.shard_hash = vote.shard_hash();
  out.bytes = {vote.shard_bytes(), vote.replica_bytes(), vote.federation_bytes()};
  out.averaging_seconds = vote.averaging_seconds();
  out.parameters = vote.parameters();
  out.padded_parameters = vote.padded_parameters();
  return out;
}

service::StepReport StepsFromProto(core::RankId from, const v1::StepReport& report) {
  service::StepReport out;
  out.from = std::move(from);
  for (const v1::StepRecord& step : report.steps()) {
    out.steps.push_back({step.step(), step.tokens(), step.loss(), step.gradient_norm(),
                         step.learning_rate(), step.seconds(), step.skipped()});
  }
  return out;
}

std::optional<service::NodeReport> RankReportFromProto(const v1::RankReported& message) {
  core::RankId from = RankFromProto(message);
  const v1::RankReport& report = message.report();
  switch (report.report_case()) {
    case v1::RankReport::kSteps:
      return StepsFromProto(std::move(from), report.steps());
    case v1::RankReport::kGroupReady: {
      const v1::GroupReady& ready = report.group_ready();
      return core::GroupReady{std::move(from),      ready.round(),        ready.steps(),
                              ready.tokens(),       ready.first_loss(),   ready.last_loss(),
                              ready.step_seconds(), ready.skipped_steps()};
    }
    case v1::RankReport::kVote:
      return VoteFromProto(std::move(from), report.vote());
    case v1::RankReport::kEvaluation:
      return core::EvaluationReport{std::move(from), report.evaluation().round(),
                                    report.evaluation().loss_sum(), report.evaluation().tokens()};
    case v1::RankReport::kSummary:
      return core::JobSummary{
          std::move(from),
          report.summary().parameter_hash(),
          {report.summary().sample_tokens().begin(), report.summary().sample_tokens().end()}};
    case v1::RankReport::kCheckpoint: {
      const v1::CheckpointReport& written = report.checkpoint();
      return core::CheckpointReport{std::move(from), written.step(),    written.path(),
                                    written.bytes(), written.seconds(), written.error()};
    }
    case v1::RankReport::kFailure:
      return core::RankFailure{std::move(from), report.failure().reason(),
                               report.failure().message()};
    case v1::RankReport::REPORT_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

// What lies outside the years that a timestamp may have is moved to their edge.
int64_t WallUsFromProto(const google::protobuf::Timestamp& time) {
  constexpr int64_t kMaxSeconds = 253'402'300'799;
  return std::clamp<int64_t>(time.seconds(), 0, kMaxSeconds) * 1'000'000 + time.nanos() / 1000;
}

service::LogLines LinesFromProto(const v1::LogLines& lines) {
  service::LogLines out{lines.log_request(), {}, lines.done()};
  for (const v1::LogLine& line : lines.lines()) {
    out.lines.push_back({line.rank(), WallUsFromProto(line.time()), line.line()});
  }
  return out;
}

void FillDirect(const core::DirectRanks& direct, v1::DirectRanks& out) {
  out.set_job(direct.job);
  out.set_generation(direct.generation);
  if (const auto* plan = std::get_if<core::RoundPlan>(&direct.directive)) {
    v1::RoundPlan* message = out.mutable_directive()->mutable_plan();
    message->set_round(plan->round);
    message->set_attempt(plan->attempt);
    for (const core::PlanParticipant& one : plan->participants) {
      v1::PlanParticipant* participant = message->add_participants();
      participant->set_group(one.group);
      participant->set_weight(one.weight);
    }
    return;
  }
  const auto& decision = std::get<core::RoundDecision>(direct.directive);
  v1::RoundDecision* message = out.mutable_directive()->mutable_decision();
  message->set_round(decision.round);
  message->set_attempt(decision.attempt);
  message->set_commit(decision.commit);
  message->set_evaluate(decision.evaluate);
  message->set_finish(decision.finish);
  message->set_message(ValidUtf8(decision.message));
  if (decision.checkpoint) {
    v1::CheckpointOrder* order = message->mutable_checkpoint();
    order->set_step(decision.checkpoint->step);
    order->set_tokens(decision.checkpoint->tokens);
    order->set_next_sample(decision.checkpoint->next_sample);
  }
  if (!decision.next) return;
  v1::RoundAssignment* next = message->mutable_next();
  next->set_round(decision.next->round);
  next->set_steps(decision.next->steps);
  next->mutable_lease()->set_first_sample(decision.next->lease.first_sample);
  next->mutable_lease()->set_sample_count(decision.next->lease.sample_count);
  next->set_first_step(decision.next->first_step);
  next->set_committed_tokens(decision.next->committed_tokens);
  next->set_tokens_per_step(decision.next->tokens_per_step);
  next->set_must_align(decision.next->must_align);
}

// One overload per directive.
struct DirectiveTranslator {
  v1::ConnectResponse& out;

  void operator()(const service::Registered& directive) const {
    v1::Registered* message = out.mutable_registered();
    message->set_coordinator_incarnation(directive.coordinator_incarnation);
    message->set_heartbeat_interval_ms(directive.heartbeat_interval_ms);
    message->set_last_report(directive.last_report);
  }
  void operator()(const service::Acknowledge& directive) const {
    out.mutable_acknowledge()->set_last_report(directive.last_report);
  }
  void operator()(const core::StartRanks& directive) const {
    v1::StartRanks* message = out.mutable_start_ranks();
    message->set_job(directive.job);
    message->set_generation(directive.generation);
    message->set_federation_generation(directive.federation_generation);
    message->mutable_spec()->ParseFromString(directive.spec_blob);
    for (const core::RankPlacement& rank : directive.ranks) {
      v1::RankPlacement* placement = message->add_ranks();
      placement->set_rank(rank.rank);
      placement->set_node(rank.node);
      placement->set_slot(rank.slot);
    }
  }
  void operator()(const core::StopRanks& directive) const {
    v1::StopRanks* message = out.mutable_stop_ranks();
    message->set_job(directive.job);
    message->set_generation(directive.generation);
    message->set_grace_ms(directive.grace_ms);
    message->set_message(ValidUtf8(directive.message));
  }
  void operator()(const core::DirectRanks& directive) const {
    FillDirect(directive, *out.mutable_direct_ranks());
  }
  void operator()(const service::ReadLogs& directive) const {
    v1::ReadLogs* message = out.mutable_read_logs();
    message->set_log_request(directive.log_request);
    message->set_job(directive.job);
    message->mutable_ranks()->Add(directive.ranks.begin(), directive.ranks.end());
    message->set_tail_lines(directive.tail_lines);
    message->set_follow(directive.follow);
  }
  void operator()(const service::StopLogs& directive) const {
    out.mutable_stop_logs()->set_log_request(directive.log_request);
  }
};

}  // namespace

service::NodeRegistration RegistrationFromProto(const v1::Register& message,
                                                Violations& violations) {
  CheckId(message.node_id(), "register.node_id", violations);
  CheckText(message.incarnation(), "register.incarnation", true, violations);
  CheckText(message.data_address(), "register.data_address", true, violations);
  CheckText(message.version(), "register.version", false, violations);
  if (message.slots() < 1 || message.slots() > kMaxSlots) {
    violations.Add("register.slots", absl::StrCat("must be 1 to ", kMaxSlots));
  }
  if (message.labels_size() > kMaxLabels) {
    violations.Add("register.labels", absl::StrCat("at most ", kMaxLabels));
  }
  service::NodeRegistration out;
  out.node.node = message.node_id();
  out.node.incarnation = message.incarnation();
  out.node.slots = message.slots();
  out.node.data_address = message.data_address();
  out.node.version = message.version();
  for (const v1::Label& label : message.labels()) {
    CheckText(label.key(), "register.labels.key", true, violations);
    CheckText(label.value(), "register.labels.value", false, violations);
    if (!out.node.labels.emplace(label.key(), label.value()).second) {
      violations.Add("register.labels", absl::StrCat("has ", label.key(), " twice"));
    }
  }
  out.coordinator_incarnation = message.coordinator_incarnation();
  out.last_directive = message.last_directive();
  return out;
}

std::optional<service::NodeReport> ReportFromProto(const v1::ConnectRequest& message) {
  switch (message.report_case()) {
    case v1::ConnectRequest::kRankReported:
      return RankReportFromProto(message.rank_reported());
    case v1::ConnectRequest::kRankExited: {
      const v1::RankExited& exited = message.rank_exited();
      return core::RankExited{
          RankFromProto(exited), exited.exit_code(),
          exited.signal(),       exited.reason(),
          exited.message(),      {exited.log_tail().begin(), exited.log_tail().end()}};
    }
    case v1::ConnectRequest::kLogLines:
      return LinesFromProto(message.log_lines());
    default:
      return std::nullopt;
  }
}

v1::ConnectResponse MessageToProto(const service::NodeMessage& message) {
  v1::ConnectResponse out;
  out.set_sequence(message.sequence);
  std::visit(DirectiveTranslator{out}, message.directive);
  return out;
}

}  // namespace fedshard::rpc
