// All that the coordinator knows. Sorted containers only: their order is visible in effects.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "coordinator/core/types.h"

namespace fedshard::core {

struct Node {
  NodeId id;
  NodeState state = NodeState::kActive;
  bool connected = true;  // Its stream is open, as far as the core was told.
  std::string incarnation;
  std::deque<std::string> former_incarnations;  // Refused; oldest first, bounded.
  std::map<std::string, std::string> labels;
  std::string data_address;
  std::string version;
  Instant registered;
  // Steady. The one thing that is neither recorded nor serialised: a heartbeat that changes nothing
  // else leaves no trace.
  int64_t last_heartbeat_us = 0;
  // One entry per slot; empty = free, else the job that holds it.
  std::vector<JobId> slots;
};

enum class RankState { kStarting, kRunning, kExited };

struct Rank {
  RankPlacement placement;
  RankState state = RankState::kStarting;
};

struct Group {
  int32_t index = 0;
  Generation generation = 0;
  GroupState state = GroupState::kStarting;
  std::vector<Rank> ranks;  // R*S, in rank order.
  int64_t steps = 0;        // Committed.
  int64_t tokens = 0;       // Committed.
  int64_t skipped_steps = 0;
};

// A group's part in a round.
struct Participant {
  int32_t group = 0;
  RoundAssignment assignment;
  bool ready = false;
  int64_t steps = 0;
  int64_t tokens = 0;
  double first_loss = 0;
  double last_loss = 0;
  double step_seconds = 0;
  int64_t skipped_steps = 0;
  double weight = 0;
};

struct Vote {
  uint64_t shard_hash = 0;
  TierBytes bytes;
  double averaging_seconds = 0;
};

struct Round {
  int64_t number = 0;
  RoundState state = RoundState::kTraining;
  int32_t attempt = 1;
  std::vector<Participant> participants;  // By group.
  std::map<int32_t, Vote> votes;          // By rank; emptied by the decision.
  int64_t started_us = 0;
  int64_t planned_us = 0;
  int64_t decided_us = 0;
  Instant decided;
  std::string message;
  bool evaluates = false;  // The decision asked for an evaluation.
  // Sums of the evaluation that followed the commit; complete when every group has reported.
  std::map<int32_t, std::pair<double, int64_t>> evaluation;
  std::optional<double> validation_loss;
};

struct Condition {
  bool active = false;
  std::string reason;
  std::string message;
  Instant changed;
};

struct JobResult {
  std::optional<double> train_loss_first;
  std::optional<double> train_loss_last;
  std::optional<double> validation_loss_first;
  std::optional<double> validation_loss_last;
  double step_seconds = 0;       // Of the slowest group, summed over rounds.
  double averaging_seconds = 0;  // Of the slowest rank, summed over rounds.
  TierBytes bytes;               // All ranks, all steps.
  int64_t parameters = 0;
  int64_t padded_parameters = 0;
  std::string parameter_hash;
  std::vector<uint32_t> sample_tokens;
};

// A cause that another one may still replace: the ranks are stopped, the job's reason is decided at
// `decide_at_us`.
struct PendingFailure {
  std::string reason;
  std::string message;
  int64_t decide_at_us = 0;
};

struct Job {
  JobSpec spec;
  std::string uid;
  JobState state = JobState::kQueued;
  std::string reason;
  std::string message;
  std::map<std::string, Condition> conditions;
  Instant created;
  Instant started;  // All ranks ready.
  Instant ended;
  std::vector<Group> groups;  // Empty until placed.
  Generation federation_generation = 0;
  // The first failure that a rank reported itself, kept until its exit explains it.
  std::map<int32_t, std::pair<std::string, std::string>> rank_failures;
  int64_t committed_steps = 0;   // Of one group.
  int64_t committed_tokens = 0;  // Of all groups.
  int64_t next_sample = 0;       // First index that no lease has handed out.
  int64_t rounds_committed = 0;
  int64_t rounds_aborted = 0;
  Round start;               // Round 0: the votes on the initial shards and the first evaluation.
  std::deque<Round> rounds;  // From round 1, oldest first; the last one may be open.
  std::optional<double> validation_loss;  // Of the last evaluation that is complete.
  JobResult result;
  // The newest complete checkpoint; empty = none.
  std::string checkpoint;
  int64_t checkpoint_step = 0;
  bool finishing = false;   // The decision to finish is out; ranks may exit with 0.
  bool summarized = false;  // The first rank's summary is in `result`.
  bool stopping = false;    // The ranks were told to stop.
  std::optional<PendingFailure> pending_failure;
  std::optional<int64_t> deadline_us;  // Start, vote or stop; what it means follows from the state.
};

enum class RequestKind { kSubmit, kCancel };
struct Request {
  RequestKind kind = RequestKind::kSubmit;
  JobId job;
};

struct State {
  std::map<NodeId, Node> nodes;
  std::map<JobId, Job> jobs;
  std::vector<JobId> queue;  // Submission order of jobs that wait for slots.
  std::set<JobId> active;    // Jobs with ranks that have not all exited.
  uint64_t next_generation = 1;
  uint64_t next_uid = 1;
  // request_id -> the request that was granted under it. The oldest are forgotten.
  std::map<std::string, Request> requests;
  std::deque<std::string> request_order;
};

// Canonical text of the whole state but for heartbeats: equal states give equal bytes.
std::string Serialize(const State& state);

}  // namespace fedshard::core
