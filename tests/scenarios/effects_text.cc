#include "tests/scenarios/effects_text.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/record.h"

namespace fedshard::core {
namespace {

const char* Name(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kStarting:
      return "STARTING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kCompleted:
      return "COMPLETED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCanceling:
      return "CANCELING";
    case JobState::kCanceled:
      return "CANCELED";
  }
  return "?";
}

const char* Name(GroupState state) {
  switch (state) {
    case GroupState::kStarting:
      return "STARTING";
    case GroupState::kTraining:
      return "TRAINING";
    case GroupState::kReady:
      return "READY";
    case GroupState::kAveraging:
      return "AVERAGING";
    case GroupState::kStopping:
      return "STOPPING";
    case GroupState::kStopped:
      return "STOPPED";
  }
  return "?";
}

const char* Name(RoundState state) {
  switch (state) {
    case RoundState::kTraining:
      return "TRAINING";
    case RoundState::kAveraging:
      return "AVERAGING";
    case RoundState::kCommitted:
      return "COMMITTED";
    case RoundState::kAborted:
      return "ABORTED";
  }
  return "?";
}

std::string OneLine(const std::string& text) { return absl::StrReplaceAll(text, {{"\n", "\\n"}}); }

std::string Format(const StartRanks& start) {
  std::string text = absl::StrCat("start ", start.job, " g", start.generation, " f",
                                  start.federation_generation, " ranks");
  for (const RankPlacement& rank : start.ranks) {
    absl::StrAppend(&text, " ", rank.rank, "@", rank.slot);
  }
  return text;
}

std::string Format(const StopRanks& stop) {
  return absl::StrCat("stop ", stop.job, " g", stop.generation, " grace ", stop.grace_ms,
                      "ms: ", OneLine(stop.message));
}

std::string Format(const RoundPlan& plan) {
  std::string text = absl::StrCat("plan round ", plan.round, " attempt ", plan.attempt, " weights");
  for (const PlanParticipant& participant : plan.participants) {
    absl::StrAppend(&text, " ", participant.group, ":", participant.weight);
  }
  return text;
}

std::string Format(const RoundDecision& decision) {
  std::string text = absl::StrCat(decision.commit ? "commit" : "abort", " round ", decision.round,
                                  " attempt ", decision.attempt);
  if (decision.evaluate) absl::StrAppend(&text, ", evaluate");
  if (decision.finish) absl::StrAppend(&text, ", finish");
  if (decision.checkpoint) {
    absl::StrAppend(&text, ", checkpoint step ", decision.checkpoint->step, " tokens ",
                    decision.checkpoint->tokens, " samples ", decision.checkpoint->next_sample);
  }
  if (decision.next) {
    const RoundAssignment& next = *decision.next;
    absl::StrAppend(&text, ", next round ", next.round, ": ", next.steps, " steps from ",
                    next.first_step, ", samples [", next.lease.first_sample, ", ",
                    next.lease.first_sample + next.lease.sample_count, "), tokens ",
                    next.committed_tokens, " + ", next.tokens_per_step, " a step");
  }
  if (!decision.message.empty()) absl::StrAppend(&text, ": ", OneLine(decision.message));
  return text;
}

std::string Format(const DirectRanks& direct) {
  return absl::StrCat("ranks of ", direct.job, " g", direct.generation, ": ",
                      std::visit([](const auto& body) { return Format(body); }, direct.directive));
}

std::string Format(const Reply& reply) {
  std::string text =
      absl::StrCat("reply ", reply.reply_to, " ", absl::StatusCodeToString(reply.status.code()));
  for (const std::string& part :
       {reply.reason, reply.job, reply.message, std::string(reply.status.message())}) {
    if (!part.empty()) absl::StrAppend(&text, " ", part);
  }
  return text;
}

std::string FormatJob(const Job& job) {
  std::string text = absl::StrCat("job ", job.spec.id, " ", Name(job.state), " ", job.reason, ": ",
                                  OneLine(job.message));
  return text;
}

void AppendProgress(const Job& job, std::vector<std::string>& lines) {
  lines.push_back(absl::StrCat("  steps ", job.committed_steps, "/", job.spec.total_steps,
                               ", tokens ", job.committed_tokens, ", samples leased ",
                               job.next_sample, ", rounds ", job.rounds_committed, " committed ",
                               job.rounds_aborted, " aborted"));
  if (!job.rounds.empty()) {
    const Round& round = job.rounds.back();
    lines.push_back(absl::StrCat("  round ", round.number, " ", Name(round.state),
                                 round.message.empty() ? "" : ": ", OneLine(round.message)));
  }
  const JobResult& result = job.result;
  std::string losses;
  auto append = [&losses](const char* name, const std::optional<double>& value) {
    if (value) absl::StrAppend(&losses, " ", name, " ", *value);
  };
  append("train_first", result.train_loss_first);
  append("train_last", result.train_loss_last);
  append("validation", job.validation_loss);
  append("validation_first", result.validation_loss_first);
  append("validation_last", result.validation_loss_last);
  if (!job.checkpoint.empty()) {
    lines.push_back(
        absl::StrCat("  checkpoint ", job.checkpoint, " at step ", job.checkpoint_step));
  }
  if (!losses.empty()) lines.push_back(absl::StrCat("  loss", losses));
  if (job.rounds_committed > 0) {
    lines.push_back(absl::StrCat(
        "  seconds step ", result.step_seconds, " averaging ", result.averaging_seconds, ", bytes ",
        result.bytes.shard, " ", result.bytes.replica, " ", result.bytes.federation,
        ", parameters ", result.parameters, " padded ", result.padded_parameters, " hash ",
        result.parameter_hash.empty() ? "-" : result.parameter_hash));
  }
}

}  // namespace

std::string FormatSeconds(int64_t us) { return absl::StrCat(us / 1e6, "s"); }

std::vector<std::string> FormatEffects(const Effects& effects) {
  std::vector<std::string> lines;
  for (const Reply& reply : effects.replies) lines.push_back(Format(reply));
  for (const Directive& directive : effects.directives) {
    lines.push_back(
        absl::StrCat("to ", directive.node, "/", directive.incarnation, ": ",
                     std::visit([](const auto& body) { return Format(body); }, directive.body)));
  }
  for (const DropScope& scope : effects.dropped_scopes) {
    lines.push_back(absl::StrCat("drop ", scope.job, " ", scope.scope));
  }
  for (const Event& event : effects.events) {
    lines.push_back(absl::StrCat("event ", event.job, event.job.empty() ? "" : " ", event.node,
                                 event.node.empty() ? "" : " ", event.reason, ": ",
                                 OneLine(event.message)));
  }
  return lines;
}

std::string RecordName(const Record& record) {
  static constexpr const char* kNames[] = {
      "SubmitJob", "CancelJob",        "RegisterNode", "NodeHeartbeat",   "GroupReady",
      "RankVote",  "EvaluationReport", "JobSummary",   "RankFailure",     "RankExited",
      "Tick",      "NodeDisconnected", "NodeLost",     "DeadlinesPassed", "CheckpointReport"};
  static_assert(std::size(kNames) == std::variant_size_v<Command>);
  const auto decoded = DecodeRecord(record.bytes);
  return decoded.ok() ? kNames[decoded->command.index()] : decoded.status().ToString();
}

std::vector<std::string> FormatState(const State& state) {
  std::vector<std::string> lines;
  for (const auto& [id, job] : state.jobs) {
    lines.push_back(FormatJob(job));
    if (job.committed_steps > 0 || !job.rounds.empty()) AppendProgress(job, lines);
    std::string conditions = "  conditions";
    for (const auto& [type, condition] : job.conditions) {
      absl::StrAppend(&conditions, " ", type, condition.active ? "=yes(" : "=no(", condition.reason,
                      ")");
    }
    lines.push_back(conditions);
    for (const Group& group : job.groups) {
      lines.push_back(absl::StrCat("  group ", group.index, " g", group.generation, " ",
                                   Name(group.state), ", steps ", group.steps, ", tokens ",
                                   group.tokens));
    }
  }
  for (const auto& [id, node] : state.nodes) {
    std::string text = absl::StrCat("node ", id, "/", node.incarnation,
                                    node.state == NodeState::kActive ? " ACTIVE" : " LOST",
                                    node.connected ? "" : " disconnected", ", slots");
    for (const JobId& job : node.slots) absl::StrAppend(&text, " ", job.empty() ? "-" : job);
    lines.push_back(text);
  }
  return lines;
}

}  // namespace fedshard::core
