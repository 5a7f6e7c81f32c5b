#include "coordinator/core/deadlines.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/rounds.h"
#include "coordinator/core/stopping.h"

namespace fedshard::core {
namespace {

std::optional<int64_t> DeadlineOf(const Job& job) {
  if (!job.pending_failure) return job.deadline_us;
  const int64_t decide_at = job.pending_failure->decide_at_us;
  return job.deadline_us ? std::min(*job.deadline_us, decide_at) : decide_at;
}

void FailOverdueStart(Transition& t, Job& job) {
  const std::string missing =
      DescribeRanks(job, [](const Rank& rank) { return rank.state == RankState::kStarting; });
  FailJob(t, job, "START_TIMEOUT",
          absl::StrCat("not ready within ", t.options.start_deadline_us / 1e6, " s: ", missing));
}

void HandlePassed(Transition& t, Job& job) {
  if (job.pending_failure && job.pending_failure->decide_at_us <= t.now.steady_us) {
    DecidePendingFailure(t, job);
  }
  if (!job.deadline_us || *job.deadline_us > t.now.steady_us) return;
  if (job.stopping) {
    ReportStopOverdue(t, job);
  } else if (job.state == JobState::kStarting) {
    FailOverdueStart(t, job);
  } else {
    FailOverdueVotes(t, job);
  }
}

}  // namespace

bool AnyDeadlinePassed(const State& state, Instant now) {
  return std::any_of(state.active.begin(), state.active.end(), [&](const JobId& id) {
    const std::optional<int64_t> deadline = DeadlineOf(state.jobs.at(id));
    return deadline && *deadline <= now.steady_us;
  });
}

void HandleDeadlinesPassed(Transition& t) {
  const std::vector<JobId> active(t.state.active.begin(), t.state.active.end());
  for (const JobId& id : active) HandlePassed(t, t.state.jobs.at(id));
}

std::optional<int64_t> NextDeadline(const CoreOptions& options, const State& state) {
  std::optional<int64_t> next;
  auto consider = [&next](int64_t at) { next = next ? std::min(*next, at) : at; };
  for (const auto& [id, node] : state.nodes) {
    if (node.state == NodeState::kActive) {
      consider(node.last_heartbeat_us + options.node_lost_after_us);
    }
  }
  for (const JobId& id : state.active) {
    if (const auto deadline = DeadlineOf(state.jobs.at(id))) consider(*deadline);
  }
  return next;
}

}  // namespace fedshard::core
