// What the core wants done, in this order: persist the records; then release replies and
// directives; then arm the timer and publish the events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/types.h"

namespace fedshard::core {

// --- Directives to nodes ---
struct StartRanks {
  JobId job;
  Generation generation = 0;
  Generation federation_generation = 0;
  std::string spec_blob;
  std::vector<RankPlacement> ranks;  // All on the directive's node.
};
struct StopRanks {
  JobId job;
  Generation generation = 0;
  int32_t grace_ms = 0;
  std::string message;
};
struct PlanParticipant {
  int32_t group = 0;
  double weight = 0;
};
struct RoundPlan {
  int64_t round = 0;
  int32_t attempt = 0;
  std::vector<PlanParticipant> participants;  // By group.
};
// The counters of a checkpoint that the ranks are to write.
struct CheckpointOrder {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t next_sample = 0;
};
struct RoundDecision {
  int64_t round = 0;
  int32_t attempt = 0;
  bool commit = false;
  bool evaluate = false;
  std::optional<RoundAssignment> next;
  bool finish = false;
  std::optional<CheckpointOrder> checkpoint;
  std::string message;
};
// To every rank of the generation on the node.
struct DirectRanks {
  JobId job;
  Generation generation = 0;
  std::variant<RoundPlan, RoundDecision> directive;
};
struct Directive {
  NodeId node;
  std::string incarnation;  // Dropped when the node has another one by now.
  std::variant<StartRanks, StopRanks, DirectRanks> body;
};

// --- Replies to users ---
struct Reply {
  uint64_t reply_to = 0;
  absl::Status status;
  // UPPER_SNAKE_CASE when status is an error. Of a validate_only submit that is OK: PLACED (would
  // start now) or WAITING_FOR_SLOTS, with the reason for people in `message`.
  std::string reason;
  std::string message;
  JobId job;  // The job it is about, when status is OK (not stored when validate_only).
};

// --- Everything else ---
// One line of the journal: the command as applied, encoded by core/record.h. Replaying all records
// from the start gives the same state.
struct Record {
  std::string bytes;
};
// Something happened to a job or a node; watchers look again, and it is logged.
struct Event {
  JobId job;    // Empty: not about a job.
  NodeId node;  // Empty: not about a node.
  std::string reason;
  std::string message;
};
// Rendezvous keys of these scopes ("g3", "f1") are dead.
struct DropScope {
  JobId job;
  std::string scope;
};

struct Effects {
  std::vector<Record> records;
  std::vector<Reply> replies;
  std::vector<Directive> directives;
  std::vector<DropScope> dropped_scopes;
  std::vector<Event> events;
  // Call Apply(Tick) at this steady time or earlier; none = no deadline pending.
  std::optional<int64_t> wake_at_us;
};

}  // namespace fedshard::core
