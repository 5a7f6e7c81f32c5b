// What travels between the coordinator and a node's worker, as plain data; the RPC adapters
// translate it from and to protobuf. The comments of proto/fedshard/v1/worker_service.proto are the
// contract.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/commands.h"
#include "coordinator/core/effects.h"

namespace fedshard::service {

// --- To the node ---
struct Registered {
  std::string coordinator_incarnation;
  int32_t heartbeat_interval_ms = 0;
  uint64_t last_report = 0;
};
struct Acknowledge {
  uint64_t last_report = 0;
};
struct ReadLogs {
  uint64_t log_request = 0;
  core::JobId job;
  std::vector<int32_t> ranks;
  int32_t tail_lines = 0;
  bool follow = false;
};
struct StopLogs {
  uint64_t log_request = 0;
};
using NodeDirective = std::variant<Registered, Acknowledge, core::StartRanks, core::StopRanks,
                                   core::DirectRanks, ReadLogs, StopLogs>;
struct NodeMessage {
  uint64_t sequence = 0;  // 0: not resent.
  NodeDirective directive;
};

// --- From the node ---
struct NodeRegistration {
  core::RegisterNode node;
  // Of the coordinator this worker was registered with before, and the last directive it processed
  // from that one.
  std::string coordinator_incarnation;
  uint64_t last_directive = 0;
};
struct StepRecord {
  int64_t step = 0;  // 1, 2, ... of this group.
  int64_t tokens = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  bool skipped = false;  // Not finite; loss and gradient_norm say what they were.
};
struct StepReport {
  core::RankId from;
  std::vector<StepRecord> steps;
};
struct LogLine {
  int32_t rank = 0;
  int64_t wall_us = 0;
  std::string line;
};
struct LogLines {
  uint64_t log_request = 0;
  std::vector<LogLine> lines;
  bool done = false;
};
// The node and the incarnation inside are filled in from the session, never believed.
using NodeReport = std::variant<StepReport, core::GroupReady, core::RankVote,
                                core::EvaluationReport, core::JobSummary, core::CheckpointReport,
                                core::RankFailure, core::RankExited, LogLines>;

// One open stream of a node, implemented by the RPC adapter. Called on the loop thread; never
// blocks.
class NodeStream {
 public:
  virtual ~NodeStream() = default;

  // Queues the message for writing. The sessions bound how many are on their way. An Acknowledge
  // may replace one that is still queued.
  virtual void Send(const NodeMessage& message) = 0;
  // The message handed over last is dealt with: the adapter reads the next one. This is the flow
  // control of reports.
  virtual void ReadNext() = 0;
  // Ends the stream with this status; later calls do nothing.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace fedshard::service
