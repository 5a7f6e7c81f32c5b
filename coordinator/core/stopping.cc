#include "coordinator/core/stopping.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/describe.h"

namespace fedshard::core {
namespace {

void DropScopes(Transition& t, const Job& job) {
  for (const Group& group : job.groups) {
    t.effects.dropped_scopes.push_back({job.spec.id, absl::StrCat("g", group.generation)});
  }
  t.effects.dropped_scopes.push_back({job.spec.id, absl::StrCat("f", job.federation_generation)});
}

void AbortOpenRound(Transition& t, Job& job, const std::string& message) {
  if (job.rounds.empty()) return;
  Round& round = job.rounds.back();
  if (round.state != RoundState::kTraining && round.state != RoundState::kAveraging) return;
  round.state = RoundState::kAborted;
  round.message = message;
  round.decided_us = t.now.steady_us;
  round.decided = t.now;
  round.votes.clear();
  ++job.rounds_aborted;
  t.JobEvent(job, "ROUND_ABORTED", absl::StrCat("round ", round.number));
}

void MarkStopped(Transition& t, Job& job) {
  job.deadline_us.reset();
  t.state.active.erase(job.spec.id);
  t.SetCondition(job, kStopped, true, "STOPPED", "all ranks have exited");
  t.JobEvent(job, "STOPPED", "all ranks have exited");
  if (job.state == JobState::kCanceling) {
    job.state = JobState::kCanceled;
    job.ended = t.now;
    t.JobEvent(job, job.reason, "canceled");
  }
}

void Complete(Transition& t, Job& job) {
  job.state = JobState::kCompleted;
  job.reason = "COMPLETED";
  job.message = absl::StrCat(job.committed_steps, " steps, ", job.committed_tokens, " tokens");
  job.ended = t.now;
  DropScopes(t, job);
  t.state.active.erase(job.spec.id);
  t.SetCondition(job, kReady, false, job.reason, job.message);
  t.SetCondition(job, kStopped, true, job.reason, "all ranks have exited");
  t.JobEvent(job, job.reason, job.message);
}

// What a finishing job still owes when all its ranks have exited with 0, or "".
std::string MissingAtTheEnd(const Job& job) {
  if (!job.summarized) return "the first rank sent no summary";
  if (job.spec.evaluates && !job.result.validation_loss_last) {
    return "not every group reported the final evaluation";
  }
  return "";
}

}  // namespace

void BeginStop(Transition& t, Job& job, const std::string& message) {
  if (job.stopping) return;
  job.stopping = true;
  AbortOpenRound(t, job, message);
  for (Group& group : job.groups) {
    t.SendStop(job, group, message);
    if (group.state != GroupState::kStopped) group.state = GroupState::kStopping;
  }
  DropScopes(t, job);
  job.deadline_us =
      t.now.steady_us + int64_t{t.options.stop_grace_ms} * 1000 + t.options.stop_deadline_us;
  t.SetCondition(job, kReady, false, "STOPPING", message);
  t.SetCondition(job, kStopped, false, "STOPPING", "waits for all ranks to exit");
}

void FailJob(Transition& t, Job& job, const std::string& reason, const std::string& message) {
  if (IsTerminal(job.state) || job.state == JobState::kCanceling) return;
  job.pending_failure.reset();
  job.state = JobState::kFailed;
  job.reason = reason;
  job.message = message;
  job.ended = t.now;
  t.changed = true;
  t.JobEvent(job, reason, message);
  BeginStop(t, job, message);
  CheckAllExited(t, job);
}

void FailJobUnlessExplained(Transition& t, Job& job, const std::string& message) {
  if (IsTerminal(job.state) || job.stopping) return;
  job.pending_failure =
      PendingFailure{"COLLECTIVE_FAILED", message, t.now.steady_us + t.options.echo_wait_us};
  t.JobEvent(job, "COLLECTIVE_FAILED", message);
  BeginStop(t, job, message);
  CheckAllExited(t, job);
}

void DecidePendingFailure(Transition& t, Job& job) {
  const PendingFailure pending = *job.pending_failure;
  for (const auto& [id, node] : t.state.nodes) {
    if (node.connected) continue;
    const std::vector<int32_t> living = LivingRanksOn(job, id);
    if (living.empty()) continue;
    FailJob(t, job, "NODE_LOST",
            absl::StrCat("the worker of ", id, " is cut off, with ", FormatRanks(living), "; ",
                         pending.message));
    return;
  }
  FailJob(t, job, pending.reason, pending.message);
}

void CheckAllExited(Transition& t, Job& job) {
  if (!AllExited(job) || t.state.active.count(job.spec.id) == 0) return;
  if (job.pending_failure) {
    DecidePendingFailure(t, job);  // Comes back here.
  } else if (job.stopping) {
    MarkStopped(t, job);
  } else if (const std::string missing = MissingAtTheEnd(job); !missing.empty()) {
    FailJob(t, job, "INTERNAL", absl::StrCat("all ranks exited with 0, but ", missing));
  } else {
    Complete(t, job);
  }
}

void ReportStopOverdue(Transition& t, Job& job) {
  const std::string message = absl::StrCat("still running: ", DescribeLivingRanks(job));
  job.deadline_us.reset();
  t.SetCondition(job, kStopped, false, "STOP_OVERDUE", message);
  t.JobEvent(job, "STOP_OVERDUE", message);
}

}  // namespace fedshard::core
