#include "coordinator/core/ranks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/trainer_exit.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/inventory.h"
#include "coordinator/core/stopping.h"

namespace fedshard::core {
namespace {

enum class CauseKind {
  kSpecific,  // Explains the job's end.
  kEcho,      // Likely the consequence of another rank's end.
  kStopped,   // The consequence of a stop.
};
struct Cause {
  CauseKind kind = CauseKind::kSpecific;
  std::string reason;
  std::string message;
};

std::string Where(const RankId& from) {
  return absl::StrCat("rank ", from.rank, " on ", from.node);
}

std::string HowItEnded(const RankExited& exited) {
  if (exited.signal == 0) return absl::StrCat(" exited with code ", exited.exit_code);
  return absl::StrCat(" was killed by ", SignalName(exited.signal), " (signal ", exited.signal,
                      ")");
}

CauseKind KindOf(const std::string& reason) {
  if (reason == "COLLECTIVE_FAILED" || reason == "NCCL_FAILED") return CauseKind::kEcho;
  if (reason == "STOPPED") return CauseKind::kStopped;
  return CauseKind::kSpecific;
}

// The worker's words for what it did itself, in the job's words.
std::string JobReason(const std::string& reason) {
  if (reason == "START_FAILED") return "TRAINER_START_FAILED";
  if (reason == "UNRESPONSIVE") return "TRAINER_UNRESPONSIVE";
  if (reason == "STOPPED") return "TRAINER_EXITED";
  return reason;
}

Cause Explain(const Job& job, const RankExited& exited) {
  Cause cause;
  const std::string how = Where(exited.from) + HowItEnded(exited);
  const std::string tail = FormatLogTail(exited.log_tail);
  if (auto said = job.rank_failures.find(exited.from.rank); said != job.rank_failures.end()) {
    cause.kind = KindOf(said->second.first);
    cause.reason = said->second.first;
    cause.message = absl::StrCat(how, ": ", said->second.second, tail);
  } else if (!exited.reason.empty()) {
    cause.kind = KindOf(exited.reason);
    cause.reason = JobReason(exited.reason);
    cause.message = absl::StrCat(how, ": ", exited.reason, exited.message.empty() ? "" : ", ",
                                 exited.message, tail);
  } else if (exited.signal != 0) {
    cause.reason = "TRAINER_KILLED";
    cause.message = absl::StrCat(how, tail);
  } else {
    cause.reason = "TRAINER_EXITED";
    cause.message = absl::StrCat(how, tail);
    if (exited.exit_code == kExitCollective) {
      cause.kind = CauseKind::kEcho;
      cause.reason = "COLLECTIVE_FAILED";
    } else if (exited.exit_code == kExitStopped || exited.exit_code == 0) {
      cause.kind = CauseKind::kStopped;
    }
  }
  return cause;
}

void ApplyCause(Transition& t, Job& job, const Cause& cause) {
  if (job.pending_failure) {
    // A rank that was told to stop may stumble over closed rendezvous; what it says then explains
    // nothing.
    const bool explains = cause.kind == CauseKind::kSpecific && cause.reason != "INTERNAL";
    if (explains) FailJob(t, job, cause.reason, cause.message);
  } else if (!job.stopping) {
    if (cause.kind == CauseKind::kEcho) {
      FailJobUnlessExplained(t, job, cause.message);
    } else {
      FailJob(t, job, cause.reason, cause.message);
    }
  }
}

void MarkExited(Transition& t, const Sender& sender) {
  t.changed = true;
  sender.rank->state = RankState::kExited;
  ReleaseSlot(t, sender.job->spec.id, sender.rank->placement);
  const auto& ranks = sender.group->ranks;
  const bool all = std::all_of(ranks.begin(), ranks.end(),
                               [](const Rank& rank) { return rank.state == RankState::kExited; });
  if (all) sender.group->state = GroupState::kStopped;
}

}  // namespace

Sender Resolve(Transition& t, const RankId& from) {
  auto stale = [&](const char* why) {
    t.Ignore(from.job, from.node, absl::StrCat("rank ", from.rank, ": ", why));
    return Sender{};
  };
  Node* node = FindNode(t.state, from.node, from.incarnation);
  if (node == nullptr) return stale("its worker's incarnation is not the registered one");
  if (node->state == NodeState::kActive) node->last_heartbeat_us = t.now.steady_us;
  auto it = t.state.jobs.find(from.job);
  if (it == t.state.jobs.end()) return stale("there is no such job");
  Job& job = it->second;
  for (Group& group : job.groups) {
    if (group.generation != from.generation) continue;
    for (Rank& rank : group.ranks) {
      if (rank.placement.rank == from.rank && rank.placement.node == from.node) {
        return {&job, &group, &rank};
      }
    }
  }
  return stale("no such rank in this generation on this node");
}

void HandleRankFailure(Transition& t, const RankFailure& command) {
  const Sender sender = Resolve(t, command.from);
  if (sender.job == nullptr) return;
  Job& job = *sender.job;
  if (IsTerminal(job.state) || job.state == JobState::kCanceling ||
      sender.rank->state == RankState::kExited) {
    return t.Ignore(command.from.job, command.from.node,
                    absl::StrCat(Where(command.from), " failed after the end: ", command.reason));
  }
  // The first word counts.
  const auto said =
      job.rank_failures.emplace(command.from.rank, std::make_pair(command.reason, command.message));
  if (!said.second) return t.Ignore(command.from.job, command.from.node, "it failed already");
  t.changed = true;
  const Cause cause{KindOf(command.reason), command.reason,
                    absl::StrCat(Where(command.from), ": ", command.message)};
  ApplyCause(t, job, cause);
}

void HandleRankExited(Transition& t, const RankExited& command) {
  const Sender sender = Resolve(t, command.from);
  if (sender.job == nullptr) return;
  Job& job = *sender.job;
  if (sender.rank->state == RankState::kExited) {
    // Given up with its node before, now known to be gone.
    ReleaseSlot(t, job.spec.id, sender.rank->placement);
    if (!t.changed) t.Ignore(command.from.job, command.from.node, "it had exited already");
    return;
  }
  MarkExited(t, sender);
  const bool clean = command.exit_code == 0 && command.signal == 0 && command.reason.empty();
  if (!(job.finishing && clean)) ApplyCause(t, job, Explain(job, command));
  CheckAllExited(t, job);
}

}  // namespace fedshard::core
