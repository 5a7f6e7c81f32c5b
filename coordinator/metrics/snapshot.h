// Everything the metrics page shows, copied out of the service at one moment. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/service/histogram.h"
#include "coordinator/service/view.h"

namespace fedshard::metrics {

struct NodeSample {
  std::string id;
  bool up = false;
  double heartbeat_age_seconds = 0;
};

struct GroupSample {
  int32_t group = 0;
  double loss = 0;
  double gradient_norm = 0;
};

struct JobSample {
  std::string id;
  int64_t steps = 0;
  int64_t committed_tokens = 0;
  int64_t rounds_committed = 0;
  int64_t rounds_aborted = 0;
  int64_t shard_bytes = 0;
  int64_t replica_bytes = 0;
  int64_t federation_bytes = 0;
  double tokens_per_second = 0;
  // Absent before the first step, or the first evaluation.
  std::optional<double> learning_rate;
  std::optional<double> validation_loss;
  std::vector<GroupSample> groups;
};

struct Snapshot {
  std::map<std::string, int64_t> nodes_by_state;  // Every state, also with 0.
  std::map<std::string, int64_t> jobs_by_state;   // Every state; jobs of all time.
  int64_t slots_used = 0;
  int64_t slots_free = 0;  // Of active nodes.
  std::vector<NodeSample> nodes;
  std::vector<JobSample> jobs;  // Those that run or ended a short while ago.
  service::Histogram step_seconds;
  service::Histogram round_seconds;
  service::Histogram decision_seconds;
  double start_time_seconds = 0;  // Since the Unix epoch.
};

// `retention_us`: how long the series of a lost node stay.
Snapshot TakeSnapshot(const service::View& view, Instant start_time, int64_t retention_us);

}  // namespace fedshard::metrics
