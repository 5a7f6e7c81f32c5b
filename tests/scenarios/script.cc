#include "tests/scenarios/script.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "tests/scenarios/effects_text.h"
#include "tests/scenarios/reports.h"

namespace fedshard::core {
namespace {

constexpr int64_t kWallStart = 1'700'000'000'000'000;
constexpr int64_t kHeartbeatUs = 2'000'000;

}  // namespace

Script::Script() : now_{0, kWallStart} {}

absl::StatusOr<std::string> Script::Run(const std::string& text) {
  std::string out;
  int number = 0;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) {
    ++number;
    if (absl::StartsWith(line, "  ")) continue;  // Old output.
    absl::StrAppend(&out, line, "\n");
    if (!absl::StartsWith(line, "> ")) continue;
    if (absl::Status status = RunLine(line.substr(2)); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", status.message()));
    }
    EndLine(out);
  }
  if (core_ == nullptr) return absl::InvalidArgumentError("no commands");
  return out;
}

absl::Status Script::RunLine(const std::string& line) {
  const std::vector<std::string> words = SplitWords(line);
  if (words.empty()) return absl::InvalidArgumentError("empty command");
  const std::string& verb = words[0];
  std::string subject;
  Arguments arguments;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const bool is_subject = i == 1 && !absl::StrContains(words[i], "=");
    if (is_subject) {
      subject = words[i];
    } else {
      arguments[parts.first] = parts.second;
    }
  }
  if (verb == "options") return SetOptions(arguments);
  if (core_ == nullptr) core_ = std::make_unique<Core>(options_);
  Taker take(arguments);
  if (verb == "register") {
    RegisterNode command{subject,
                         take.Text("incarnation", "i1"),
                         static_cast<int32_t>(take.Int("slots", 4)),
                         {},
                         "127.0.0.1",
                         "test"};
    if (take.Has("topology")) command.labels["topology"] = take.Text("topology");
    Apply(command);
    return take.Done();
  }
  if (verb == "heartbeat") {
    Heartbeat(subject, arguments);
    return absl::OkStatus();
  }
  if (verb == "disconnect") {
    Apply(NodeDisconnected{subject, take.Text("incarnation", "i1")});
    return take.Done();
  }
  if (verb == "submit") return Submit(subject, arguments);
  if (verb == "cancel") {
    Apply(CancelJob{next_reply_++, take.Text("request"), subject, take.Text("reason")});
    return take.Done();
  }
  if (verb == "tick") {
    Apply(Tick{});
    return absl::OkStatus();
  }
  if (verb == "wait") return Wait(subject, take.Flag("heartbeats"));
  if (verb == "show") {
    for (const std::string& shown : FormatState(core_->state())) lines_.push_back(shown);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<Command> reports,
                   BuildReports(core_->state(), verb, subject, arguments));
  for (const Command& report : reports) Apply(report);
  return absl::OkStatus();
}

absl::Status Script::SetOptions(const Arguments& arguments) {
  if (core_ != nullptr) return absl::InvalidArgumentError("options come first");
  Arguments rest = arguments;
  Taker take(rest);
  options_.node_lost_after_us = take.Int("node_lost_after_us", options_.node_lost_after_us);
  options_.max_jobs_queued = take.Int("max_jobs_queued", options_.max_jobs_queued);
  options_.max_rounds_kept = take.Int("max_rounds_kept", options_.max_rounds_kept);
  options_.max_request_ids = take.Int("max_request_ids", options_.max_request_ids);
  return take.Done();
}

absl::Status Script::Wait(const std::string& duration, bool heartbeats) {
  int64_t us = 0;
  ASSIGN_OR_RETURN(us, ParseDuration(duration));
  const int64_t end = now_.steady_us + us;
  while (heartbeats && now_.steady_us + kHeartbeatUs < end) {
    AdvanceTo(now_.steady_us + kHeartbeatUs);
    Heartbeat("all", {});
  }
  AdvanceTo(end);
  return absl::OkStatus();
}

void Script::AdvanceTo(int64_t steady_us) {
  while (wake_ && *wake_ <= steady_us) {
    now_ = {*wake_, kWallStart + *wake_};
    Apply(Tick{});
  }
  now_ = {steady_us, kWallStart + steady_us};
}

void Script::Heartbeat(const std::string& node, const Arguments& arguments) {
  std::vector<NodeHeartbeat> beats;
  for (const auto& [id, known] : core_->state().nodes) {
    if (node != "all" && node != id) continue;
    if (node == "all" && (!known.connected || known.state == NodeState::kLost)) continue;
    auto it = arguments.find("incarnation");
    beats.push_back({id, it == arguments.end() ? known.incarnation : it->second});
  }
  for (const NodeHeartbeat& beat : beats) Apply(beat);
}

absl::Status Script::Submit(const std::string& job, Arguments arguments) {
  Taker take(arguments);
  SubmitJob command;
  command.reply_to = next_reply_++;
  command.request_id = take.Text("request");
  command.validate_only = take.Flag("validate_only");
  JobSpec& spec = command.spec;
  spec.id = job;
  ASSIGN_OR_RETURN(spec.mesh, ParseMesh(take.Text("mesh", "1x1x1")));
  spec.averages = spec.mesh.groups > 1;
  spec.weight_by_tokens = !take.Flag("equal");
  spec.total_steps = take.Int("steps", 4);
  spec.steps_per_round = take.Int("every", 2);
  spec.samples_per_step = take.Int("samples", spec.mesh.group_size());
  spec.tokens_per_sample = take.Int("length", 10);
  spec.evaluates = take.Flag("evaluates");
  spec.evaluate_every_rounds = take.Int("evaluate_every", 0);
  spec.checkpoints = take.Flag("checkpoints");
  spec.checkpoint_every_rounds = take.Int("checkpoint_every", 0);
  spec.first_step = take.Int("first_step", 0);
  spec.first_tokens = take.Int("first_tokens", 0);
  spec.first_sample = take.Int("first_sample", 0);
  spec.blob = take.Text("blob");
  RETURN_IF_ERROR(take.Done());
  Apply(command);
  return absl::OkStatus();
}

void Script::Apply(const Command& command) {
  log_.emplace_back(command, now_);
  const Effects effects = core_->Apply(command, now_);
  for (const std::string& line : FormatEffects(effects)) lines_.push_back(line);
  for (const Record& record : effects.records) {
    ++recorded_[RecordName(record)];
    records_.push_back(record);
  }
  wake_ = effects.wake_at_us;
}

void Script::EndLine(std::string& out) {
  for (const std::string& line : lines_) absl::StrAppend(&out, "  ", line, "\n");
  for (const auto& [name, count] : recorded_) {
    absl::StrAppend(&out, "  recorded ", name, count == 1 ? "" : absl::StrCat(" x", count), "\n");
  }
  if (wake_ != shown_wake_) {
    absl::StrAppend(&out, "  timer ", wake_ ? FormatSeconds(*wake_) : "none", "\n");
    shown_wake_ = wake_;
  }
  lines_.clear();
  recorded_.clear();
}

}  // namespace fedshard::core
