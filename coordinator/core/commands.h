// Everything that can happen to the coordinator. A command is validated by its adapter for form;
// the core decides.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/core/types.h"

namespace fedshard::core {

// From users. Each is answered by one Reply with the command's reply_to.
struct SubmitJob {
  uint64_t reply_to = 0;
  std::string request_id;
  JobSpec spec;
  bool validate_only = false;
};
struct CancelJob {
  uint64_t reply_to = 0;
  std::string request_id;
  JobId job;
  std::string reason;
};

// From nodes. A message of a former incarnation is refused (an event, no effect).
//
// A node that registers under a new incarnation has restarted: what ran there is gone. Whether the
// core took the registration shows in the state afterwards: `nodes[node].incarnation` is the one
// given, or a newer one keeps the name.
struct RegisterNode {
  NodeId node;
  std::string incarnation;
  int32_t slots = 0;
  std::map<std::string, std::string> labels;
  std::string data_address;
  std::string version;
};
struct NodeHeartbeat {
  NodeId node;
  std::string incarnation;
};

// The node's stream ended. Not yet a loss (it may come back before its heartbeats are overdue), but
// nothing is placed on it meanwhile, and it explains failed collectives of other nodes. A
// registration connects it again.
struct NodeDisconnected {
  NodeId node;
  std::string incarnation;
};

// The sender of a rank's report.
struct RankId {
  NodeId node;
  std::string incarnation;
  JobId job;
  Generation generation = 0;
  int32_t rank = 0;
};
struct GroupReady {
  RankId from;
  int64_t round = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double first_loss = 0;
  double last_loss = 0;
  double step_seconds = 0;
  int64_t skipped_steps = 0;  // Because something was not finite.
};
struct RankVote {
  RankId from;
  int64_t round = 0;
  int32_t attempt = 0;
  uint64_t shard_hash = 0;
  TierBytes bytes;
  double averaging_seconds = 0;
  // Of the whole model, the same on every rank; in the vote for round 0 only.
  int64_t parameters = 0;
  int64_t padded_parameters = 0;
};
struct EvaluationReport {
  RankId from;
  int64_t round = 0;
  double loss_sum = 0;
  int64_t tokens = 0;
};
struct JobSummary {
  RankId from;
  std::string parameter_hash;
  std::vector<uint32_t> sample_tokens;
};
// From the job's first rank: a checkpoint is complete (`error` is empty) or was not written.
struct CheckpointReport {
  RankId from;
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double seconds = 0;
  std::string error;
};
// The rank says why it is about to exit.
struct RankFailure {
  RankId from;
  std::string reason;
  std::string message;
};
// The process is reaped.
struct RankExited {
  RankId from;
  int32_t exit_code = 0;
  int32_t signal = 0;
  std::string reason;
  std::string message;
  std::vector<std::string> log_tail;
};

// A timer asked for by an earlier effect, or simply the passing of time: deadlines are looked at.
struct Tick {};

// What a Tick found, as the journal keeps it: heartbeats are not recorded, so a replay could not
// find it again. The core makes these itself.
struct NodeLost {
  NodeId node;
  std::string incarnation;
};
struct DeadlinesPassed {};

using Command = std::variant<SubmitJob, CancelJob, RegisterNode, NodeHeartbeat, GroupReady,
                             RankVote, EvaluationReport, JobSummary, RankFailure, RankExited, Tick,
                             NodeDisconnected, NodeLost, DeadlinesPassed, CheckpointReport>;

}  // namespace fedshard::core
