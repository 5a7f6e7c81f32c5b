// Canonical text of the state, for comparisons and for reading. One value a line, "path = value".
#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/state.h"

namespace fedshard::core {
namespace {

class TextWriter {
 public:
  void Put(const std::string& path, int64_t value) { Line(path, absl::StrCat(value)); }
  void Put(const std::string& path, uint64_t value) { Line(path, absl::StrCat(value)); }
  void Put(const std::string& path, int32_t value) { Line(path, absl::StrCat(value)); }
  void Put(const std::string& path, uint32_t value) { Line(path, absl::StrCat(value)); }
  void Put(const std::string& path, bool value) { Line(path, value ? "true" : "false"); }
  // 17 digits tell all doubles apart.
  void Put(const std::string& path, double value) { Line(path, absl::StrFormat("%.17g", value)); }
  void Put(const std::string& path, const std::string& value) {
    Line(path, absl::StrCat("\"", absl::CHexEscape(value), "\""));
  }
  void Put(const std::string& path, Instant value) {
    Line(path, absl::StrCat(value.steady_us, " ", value.wall_us));
  }
  template <class T>
  void Put(const std::string& path, const std::optional<T>& value) {
    if (value) Put(path, *value);
  }
  template <class T>
  requires std::is_enum_v<T>
  void Put(const std::string& path, T value) { Put(path, static_cast<int64_t>(value)); }

  std::string Take() { return std::move(text_); }

 private:
  void Line(const std::string& path, const std::string& value) {
    absl::StrAppend(&text_, path, " = ", value, "\n");
  }

  std::string text_;
};

std::string At(const std::string& path, size_t index) {
  return absl::StrCat(path, "[", index, "]");
}

void WriteNode(TextWriter& w, const std::string& path, const Node& node) {
  w.Put(path + ".state", node.state);
  w.Put(path + ".connected", node.connected);
  w.Put(path + ".incarnation", node.incarnation);
  for (size_t i = 0; i < node.former_incarnations.size(); ++i) {
    w.Put(At(path + ".former_incarnations", i), node.former_incarnations[i]);
  }
  for (const auto& [key, value] : node.labels) {
    w.Put(absl::StrCat(path, ".labels[", absl::CHexEscape(key), "]"), value);
  }
  w.Put(path + ".data_address", node.data_address);
  w.Put(path + ".version", node.version);
  w.Put(path + ".registered", node.registered);
  for (size_t i = 0; i < node.slots.size(); ++i) w.Put(At(path + ".slots", i), node.slots[i]);
}

void WriteSpec(TextWriter& w, const std::string& path, const JobSpec& spec) {
  w.Put(path + ".groups", spec.mesh.groups);
  w.Put(path + ".replicas", spec.mesh.replicas);
  w.Put(path + ".shards", spec.mesh.shards);
  w.Put(path + ".averages", spec.averages);
  w.Put(path + ".weight_by_tokens", spec.weight_by_tokens);
  w.Put(path + ".total_steps", spec.total_steps);
  w.Put(path + ".steps_per_round", spec.steps_per_round);
  w.Put(path + ".samples_per_step", spec.samples_per_step);
  w.Put(path + ".tokens_per_sample", spec.tokens_per_sample);
  w.Put(path + ".evaluates", spec.evaluates);
  w.Put(path + ".evaluate_every_rounds", spec.evaluate_every_rounds);
  w.Put(path + ".checkpoints", spec.checkpoints);
  w.Put(path + ".checkpoint_every_rounds", spec.checkpoint_every_rounds);
  w.Put(path + ".first_step", spec.first_step);
  w.Put(path + ".first_tokens", spec.first_tokens);
  w.Put(path + ".first_sample", spec.first_sample);
  w.Put(path + ".blob", spec.blob);
}

void WriteGroup(TextWriter& w, const std::string& path, const Group& group) {
  w.Put(path + ".index", group.index);
  w.Put(path + ".generation", group.generation);
  w.Put(path + ".state", group.state);
  w.Put(path + ".steps", group.steps);
  w.Put(path + ".tokens", group.tokens);
  w.Put(path + ".skipped_steps", group.skipped_steps);
  for (const Rank& rank : group.ranks) {
    const std::string rank_path = At(path + ".ranks", rank.placement.rank);
    w.Put(rank_path + ".node", rank.placement.node);
    w.Put(rank_path + ".slot", rank.placement.slot);
    w.Put(rank_path + ".state", rank.state);
  }
}

void WriteBytes(TextWriter& w, const std::string& path, const TierBytes& bytes) {
  w.Put(path + ".shard", bytes.shard);
  w.Put(path + ".replica", bytes.replica);
  w.Put(path + ".federation", bytes.federation);
}

void WriteParticipant(TextWriter& w, const std::string& path, const Participant& participant) {
  const RoundAssignment& assignment = participant.assignment;
  w.Put(path + ".round", assignment.round);
  w.Put(path + ".assigned_steps", assignment.steps);
  w.Put(path + ".first_sample", assignment.lease.first_sample);
  w.Put(path + ".sample_count", assignment.lease.sample_count);
  w.Put(path + ".first_step", assignment.first_step);
  w.Put(path + ".committed_tokens", assignment.committed_tokens);
  w.Put(path + ".tokens_per_step", assignment.tokens_per_step);
  w.Put(path + ".must_align", assignment.must_align);
  w.Put(path + ".ready", participant.ready);
  w.Put(path + ".steps", participant.steps);
  w.Put(path + ".tokens", participant.tokens);
  w.Put(path + ".first_loss", participant.first_loss);
  w.Put(path + ".last_loss", participant.last_loss);
  w.Put(path + ".step_seconds", participant.step_seconds);
  w.Put(path + ".skipped_steps", participant.skipped_steps);
  w.Put(path + ".weight", participant.weight);
}

void WriteRound(TextWriter& w, const std::string& path, const Round& round) {
  w.Put(path + ".number", round.number);
  w.Put(path + ".state", round.state);
  w.Put(path + ".attempt", round.attempt);
  for (const Participant& participant : round.participants) {
    WriteParticipant(w, At(path + ".participants", participant.group), participant);
  }
  for (const auto& [rank, vote] : round.votes) {
    const std::string vote_path = At(path + ".votes", rank);
    w.Put(vote_path + ".shard_hash", vote.shard_hash);
    WriteBytes(w, vote_path + ".bytes", vote.bytes);
    w.Put(vote_path + ".averaging_seconds", vote.averaging_seconds);
  }
  w.Put(path + ".started_us", round.started_us);
  w.Put(path + ".planned_us", round.planned_us);
  w.Put(path + ".decided_us", round.decided_us);
  w.Put(path + ".decided", round.decided);
  w.Put(path + ".message", round.message);
  w.Put(path + ".evaluates", round.evaluates);
  for (const auto& [group, part] : round.evaluation) {
    w.Put(At(path + ".evaluation", group) + ".loss_sum", part.first);
    w.Put(At(path + ".evaluation", group) + ".tokens", part.second);
  }
  w.Put(path + ".validation_loss", round.validation_loss);
}

void WriteResult(TextWriter& w, const std::string& path, const JobResult& result) {
  w.Put(path + ".train_loss_first", result.train_loss_first);
  w.Put(path + ".train_loss_last", result.train_loss_last);
  w.Put(path + ".validation_loss_first", result.validation_loss_first);
  w.Put(path + ".validation_loss_last", result.validation_loss_last);
  w.Put(path + ".step_seconds", result.step_seconds);
  w.Put(path + ".averaging_seconds", result.averaging_seconds);
  WriteBytes(w, path + ".bytes", result.bytes);
  w.Put(path + ".parameters", result.parameters);
  w.Put(path + ".padded_parameters", result.padded_parameters);
  w.Put(path + ".parameter_hash", result.parameter_hash);
  for (size_t i = 0; i < result.sample_tokens.size(); ++i) {
    w.Put(At(path + ".sample_tokens", i), result.sample_tokens[i]);
  }
}

void WriteJobLife(TextWriter& w, const std::string& path, const Job& job) {
  w.Put(path + ".uid", job.uid);
  w.Put(path + ".state", job.state);
  w.Put(path + ".reason", job.reason);
  w.Put(path + ".message", job.message);
  for (const auto& [type, condition] : job.conditions) {
    const std::string condition_path = absl::StrCat(path, ".conditions[", type, "]");
    w.Put(condition_path + ".active", condition.active);
    w.Put(condition_path + ".reason", condition.reason);
    w.Put(condition_path + ".message", condition.message);
    w.Put(condition_path + ".changed", condition.changed);
  }
  w.Put(path + ".created", job.created);
  w.Put(path + ".started", job.started);
  w.Put(path + ".ended", job.ended);
  for (const auto& [rank, failure] : job.rank_failures) {
    w.Put(At(path + ".rank_failures", rank) + ".reason", failure.first);
    w.Put(At(path + ".rank_failures", rank) + ".message", failure.second);
  }
  w.Put(path + ".finishing", job.finishing);
  w.Put(path + ".summarized", job.summarized);
  w.Put(path + ".stopping", job.stopping);
  if (job.pending_failure) {
    w.Put(path + ".pending_failure.reason", job.pending_failure->reason);
    w.Put(path + ".pending_failure.message", job.pending_failure->message);
    w.Put(path + ".pending_failure.decide_at_us", job.pending_failure->decide_at_us);
  }
  w.Put(path + ".deadline_us", job.deadline_us);
}

void WriteJob(TextWriter& w, const std::string& path, const Job& job) {
  WriteSpec(w, path + ".spec", job.spec);
  WriteJobLife(w, path, job);
  w.Put(path + ".federation_generation", job.federation_generation);
  for (const Group& group : job.groups) WriteGroup(w, At(path + ".groups", group.index), group);
  w.Put(path + ".committed_steps", job.committed_steps);
  w.Put(path + ".committed_tokens", job.committed_tokens);
  w.Put(path + ".next_sample", job.next_sample);
  w.Put(path + ".rounds_committed", job.rounds_committed);
  w.Put(path + ".rounds_aborted", job.rounds_aborted);
  WriteRound(w, path + ".start", job.start);
  for (const Round& round : job.rounds) WriteRound(w, At(path + ".rounds", round.number), round);
  w.Put(path + ".validation_loss", job.validation_loss);
  w.Put(path + ".checkpoint", job.checkpoint);
  w.Put(path + ".checkpoint_step", job.checkpoint_step);
  WriteResult(w, path + ".result", job.result);
}

}  // namespace

std::string Serialize(const State& state) {
  TextWriter w;
  for (const auto& [id, node] : state.nodes) WriteNode(w, absl::StrCat("nodes[", id, "]"), node);
  for (const auto& [id, job] : state.jobs) WriteJob(w, absl::StrCat("jobs[", id, "]"), job);
  for (size_t i = 0; i < state.queue.size(); ++i) w.Put(At("queue", i), state.queue[i]);
  for (const JobId& id : state.active) w.Put("active", id);
  w.Put("next_generation", state.next_generation);
  w.Put("next_uid", state.next_uid);
  for (const auto& [id, request] : state.requests) {
    const std::string path = absl::StrCat("requests[", absl::CHexEscape(id), "]");
    w.Put(path + ".kind", request.kind);
    w.Put(path + ".job", request.job);
  }
  for (size_t i = 0; i < state.request_order.size(); ++i) {
    w.Put(At("request_order", i), state.request_order[i]);
  }
  return w.Take();
}

}  // namespace fedshard::core
