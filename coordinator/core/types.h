// Values that commands, effects and state share. Pure data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/mesh.h"

namespace fedshard::core {

using JobId = std::string;   // "shakespeare"
using NodeId = std::string;  // "node-0"
using Generation =
    uint64_t;  // One life of a group's process groups; unique in the coordinator's life.

// What the core needs to know of a job; the rest travels through it as bytes.
struct JobSpec {
  JobId id;
  Mesh mesh;
  bool averages = false;          // FL modes: rounds average. Otherwise rounds are bookkeeping.
  bool weight_by_tokens = true;   // Otherwise every group weighs the same.
  int64_t total_steps = 0;        // Optimizer steps of one group.
  int64_t steps_per_round = 0;    // A
  int64_t samples_per_step = 0;   // Of one group: micro_batch * accumulation * R * S.
  int64_t tokens_per_sample = 0;  // T
  bool evaluates = false;
  int64_t evaluate_every_rounds = 0;  // 0 = only before the first and after the last step.
  bool checkpoints = false;
  int64_t checkpoint_every_rounds = 0;  // 0 = only after the last step.
  // Where the job begins; not 0 when it resumes from a checkpoint.
  int64_t first_step = 0;
  int64_t first_tokens = 0;
  int64_t first_sample = 0;
  std::string blob;  // Serialised fedshard.v1.JobSpec, handed to the ranks unread.

  bool operator==(const JobSpec&) const = default;
};

enum class JobState { kQueued, kStarting, kRunning, kCompleted, kFailed, kCanceling, kCanceled };
enum class NodeState { kActive, kLost };
enum class GroupState { kStarting, kTraining, kReady, kAveraging, kStopping, kStopped };
enum class RoundState { kTraining, kAveraging, kCommitted, kAborted };

inline bool IsTerminal(JobState state) {
  return state == JobState::kCompleted || state == JobState::kFailed ||
         state == JobState::kCanceled;
}

struct RankPlacement {
  int32_t rank = 0;
  NodeId node;
  int32_t slot = 0;
};

struct Lease {
  int64_t first_sample = 0;
  int64_t sample_count = 0;
};

struct RoundAssignment {
  int64_t round = 0;
  int64_t steps = 0;
  Lease lease;
  int64_t first_step = 0;
  int64_t committed_tokens = 0;
  int64_t tokens_per_step = 0;
  bool must_align = false;  // See training.proto.
};

// Tensor payload sent, in bytes.
struct TierBytes {
  int64_t shard = 0;
  int64_t replica = 0;
  int64_t federation = 0;
};

}  // namespace fedshard::core
