#include "coordinator/metrics/snapshot.h"

#include <algorithm>

namespace fedshard::metrics {
namespace {

const char* JobStateName(core::JobState state) {
  switch (state) {
    case core::JobState::kQueued:
      return "queued";
    case core::JobState::kStarting:
      return "starting";
    case core::JobState::kRunning:
      return "running";
    case core::JobState::kCompleted:
      return "completed";
    case core::JobState::kFailed:
      return "failed";
    case core::JobState::kCanceling:
      return "canceling";
    case core::JobState::kCanceled:
      return "canceled";
  }
  return "unknown";
}

JobSample SampleJob(const core::Job& job, const service::View& view) {
  const service::JobProgress progress = view.telemetry.ProgressOf(job, view.now.steady_us);
  JobSample out;
  out.id = job.spec.id;
  out.steps = progress.step;
  out.committed_tokens = job.committed_tokens;
  out.rounds_committed = job.rounds_committed;
  out.rounds_aborted = job.rounds_aborted;
  out.shard_bytes = job.result.bytes.shard;
  out.replica_bytes = job.result.bytes.replica;
  out.federation_bytes = job.result.bytes.federation;
  out.tokens_per_second = progress.tokens_per_second;
  out.validation_loss = job.validation_loss;
  for (const auto& [index, group] : progress.groups) {
    out.groups.push_back({index, group.last.loss, group.last.gradient_norm});
    out.learning_rate = group.last.learning_rate;
  }
  return out;
}

}  // namespace

Snapshot TakeSnapshot(const service::View& view, Instant start_time, int64_t retention_us) {
  Snapshot out{{{"active", 0}, {"lost", 0}},
               {},
               0,
               0,
               {},
               {},
               view.telemetry.step_seconds(),
               view.telemetry.round_seconds(),
               view.telemetry.decision_seconds(),
               start_time.wall_us / 1e6};
  for (const auto state :
       {core::JobState::kQueued, core::JobState::kStarting, core::JobState::kRunning,
        core::JobState::kCompleted, core::JobState::kFailed, core::JobState::kCanceling,
        core::JobState::kCanceled}) {
    out.jobs_by_state[JobStateName(state)] = 0;
  }
  for (const auto& [id, node] : view.state.nodes) {
    const bool up = node.state == core::NodeState::kActive;
    ++out.nodes_by_state[up ? "active" : "lost"];
    const int64_t age_us = view.now.steady_us - node.last_heartbeat_us;
    if (up) {
      const auto free = std::count(node.slots.begin(), node.slots.end(), "");
      out.slots_free += free;
      out.slots_used += static_cast<int64_t>(node.slots.size()) - free;
    }
    if (up || age_us < retention_us) out.nodes.push_back({id, up, age_us / 1e6});
  }
  for (const auto& [id, job] : view.state.jobs) {
    ++out.jobs_by_state[JobStateName(job.state)];
    if (view.telemetry.IsShown(job, view.now.steady_us)) out.jobs.push_back(SampleJob(job, view));
  }
  return out;
}

}  // namespace fedshard::metrics
