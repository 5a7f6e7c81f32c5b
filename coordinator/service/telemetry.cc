#include "coordinator/service/telemetry.h"

#include <algorithm>

namespace fedshard::service {
namespace {

constexpr size_t kMaxArrivals = 4096;

// The group of the job that runs as this generation, or null.
const core::Group* FindGroup(const core::State& state, const core::RankId& from) {
  const auto job = state.jobs.find(from.job);
  if (job == state.jobs.end() || core::IsTerminal(job->second.state)) return nullptr;
  for (const core::Group& group : job->second.groups) {
    if (group.generation != from.generation) continue;
    for (const core::Rank& rank : group.ranks) {
      if (rank.placement.rank == from.rank && rank.placement.node == from.node) return &group;
    }
  }
  return nullptr;
}

}  // namespace

Telemetry::Telemetry(TelemetryOptions options)
    : options_(options),
      step_seconds_({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}),
      round_seconds_({0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}),
      decision_seconds_({0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60}) {}

bool Telemetry::Report(const core::State& state, const StepReport& report, int64_t now_us) {
  const core::Group* group = FindGroup(state, report.from);
  if (group == nullptr || report.steps.empty()) return false;
  const bool first = !jobs_.contains(report.from.job);
  Live& live = jobs_[report.from.job];
  int64_t tokens = 0;
  double seconds = 0;
  for (const StepRecord& step : report.steps) {
    step_seconds_.Observe(step.seconds);
    tokens += step.tokens;
    seconds += step.seconds;
  }
  if (first) live.first_us = now_us - static_cast<int64_t>(seconds * 1e6);
  StepRecord& last = live.groups[group->index].last;
  for (const StepRecord& step : report.steps) {
    // The numbers of a skipped step say nothing about the model.
    const double loss = step.skipped ? last.loss : step.loss;
    const double norm = step.skipped ? last.gradient_norm : step.gradient_norm;
    last = step;
    last.loss = loss;
    last.gradient_norm = norm;
  }
  live.arrivals.emplace_back(now_us, tokens);
  while (live.arrivals.size() > kMaxArrivals ||
         live.arrivals.front().first < now_us - options_.rate_window_us) {
    live.arrivals.pop_front();
  }
  return true;
}

void Telemetry::Decided(const core::Job& job, const core::RoundDecision& decision) {
  if (job.rounds.empty()) return;
  for (auto round = job.rounds.rbegin(); round != job.rounds.rend(); ++round) {
    if (round->number != decision.round) continue;
    if (round->decided_us == 0) return;
    Live& live = jobs_[job.spec.id];
    if (live.first_us == 0) live.first_us = round->decided_us;
    const std::pair<int64_t, int32_t> this_decision{decision.round, decision.attempt};
    if (this_decision <= live.last_decision) return;
    live.last_decision = this_decision;
    round_seconds_.Observe((round->decided_us - round->started_us) / 1e6);
    if (round->planned_us != 0) {
      decision_seconds_.Observe((round->decided_us - round->planned_us) / 1e6);
    }
    return;
  }
}

void Telemetry::Prune(const core::State& state, int64_t now_us) {
  std::erase_if(jobs_, [&](const auto& entry) {
    const auto job = state.jobs.find(entry.first);
    return job == state.jobs.end() || !IsShown(job->second, now_us);
  });
}

JobProgress Telemetry::ProgressOf(const core::Job& job, int64_t now_us) const {
  JobProgress progress;
  progress.step = job.committed_steps;
  const auto found = jobs_.find(job.spec.id);
  if (found == jobs_.end() || found->second.groups.empty()) {
    progress.loss = job.result.train_loss_last;
    return progress;
  }
  const Live& live = found->second;
  progress.groups = live.groups;
  int64_t slowest = job.spec.total_steps;
  double loss = 0;
  for (const auto& [index, group] : live.groups) {
    slowest = std::min(slowest, group.last.step);
    loss += group.last.loss;
    progress.gradient_norm += group.last.gradient_norm;
    progress.learning_rate = group.last.learning_rate;
  }
  const auto count = static_cast<double>(live.groups.size());
  progress.loss = loss / count;
  progress.gradient_norm /= count;
  // A group that has not reported yet is at the last commit.
  if (live.groups.size() == job.groups.size()) progress.step = std::max(progress.step, slowest);
  if (core::IsTerminal(job.state)) return progress;
  progress.tokens_per_second = TokensPerSecond(live, now_us);
  if (progress.tokens_per_second > 0) {
    const core::JobSpec& spec = job.spec;
    const double left = static_cast<double>(spec.total_steps - progress.step) /
                        static_cast<double>(spec.total_steps - spec.first_step);
    progress.eta_seconds = static_cast<double>(TotalTokens(spec) - spec.first_tokens) * left /
                           progress.tokens_per_second;
  }
  return progress;
}

bool Telemetry::IsShown(const core::Job& job, int64_t now_us) const {
  return !core::IsTerminal(job.state) || job.ended.steady_us + options_.retention_us > now_us;
}

// By the clock, not by the sum of step times: what averaging and waiting cost is in it, and a job
// that hangs falls to 0.
double Telemetry::TokensPerSecond(const Live& live, int64_t now_us) const {
  const int64_t begin = std::max(now_us - options_.rate_window_us, live.first_us);
  int64_t tokens = 0;
  for (const auto& [when, count] : live.arrivals) {
    if (when > begin) tokens += count;
  }
  return now_us > begin ? tokens * 1e6 / (now_us - begin) : 0;
}

int64_t TotalTokens(const core::JobSpec& spec) {
  return spec.first_tokens + (spec.total_steps - spec.first_step) * spec.samples_per_step *
                                 spec.tokens_per_sample * spec.mesh.groups;
}

}  // namespace fedshard::service
