// The live view of running jobs that the core does not keep: last steps, speed, histograms. Nothing
// here is durable and nothing decides anything. Owned by the service; used on the loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "coordinator/core/effects.h"
#include "coordinator/core/state.h"
#include "coordinator/service/histogram.h"
#include "coordinator/service/node_messages.h"

namespace fedshard::service {

struct TelemetryOptions {
  int64_t rate_window_us = 10'000'000;
  // Series and live numbers of an ended job are kept for this long.
  int64_t retention_us = 300'000'000;
};

// A group's last reported step.
struct GroupProgress {
  StepRecord last;
};

struct JobProgress {
  int64_t step = 0;  // Of the slowest group, uncommitted steps included.
  // Of the groups' last steps, mean over groups; absent before the first step.
  std::optional<double> loss;
  double gradient_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;       // Over the rate window.
  std::optional<double> eta_seconds;  // To the last step; absent until known.
  std::map<int32_t, GroupProgress> groups;
};

class Telemetry {
 public:
  explicit Telemetry(TelemetryOptions options);

  // Steps of one group, oldest first. Reports of jobs or generations that the core does not run are
  // ignored; returns whether this one was taken.
  bool Report(const core::State& state, const StepReport& report, int64_t now_us);
  // A decision on the job's round is being released: observes the round's durations, once per round
  // and attempt.
  void Decided(const core::Job& job, const core::RoundDecision& decision);
  // Forgets jobs that ended long ago.
  void Prune(const core::State& state, int64_t now_us);

  // From the live numbers where there are any, else from what the core has committed.
  JobProgress ProgressOf(const core::Job& job, int64_t now_us) const;
  // False once the job's series are to leave the metrics page.
  bool IsShown(const core::Job& job, int64_t now_us) const;

  const Histogram& step_seconds() const { return step_seconds_; }
  const Histogram& round_seconds() const { return round_seconds_; }
  const Histogram& decision_seconds() const { return decision_seconds_; }

 private:
  struct Live {
    std::map<int32_t, GroupProgress> groups;
    std::deque<std::pair<int64_t, int64_t>>
        arrivals;          // (when, tokens) within the rate window, bounded.
    int64_t first_us = 0;  // When the first step began.
    std::pair<int64_t, int32_t> last_decision{-1, 0};
  };

  double TokensPerSecond(const Live& live, int64_t now_us) const;

  const TelemetryOptions options_;
  std::map<core::JobId, Live> jobs_;
  Histogram step_seconds_;
  Histogram round_seconds_;
  Histogram decision_seconds_;
};

// Tokens of the whole job when all its steps are made.
int64_t TotalTokens(const core::JobSpec& spec);

}  // namespace fedshard::service
