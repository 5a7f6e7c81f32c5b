// What a rank hears from and says to the control plane, in plain types: the wall between gRPC
// (control_client.cc) and LibTorch (engine_model.cc), whose headers must not meet.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "common/trainer_exit.h"

namespace fedshard::trainer {

// The rank has to end: exit with `exit_code`.
class Stopped : public std::runtime_error {
 public:
  Stopped(int exit_code, const std::string& why) : std::runtime_error(why), exit_code(exit_code) {}
  int exit_code;
};

// The rank cannot go on; reported as RankFailure.
class Failure : public std::runtime_error {
 public:
  Failure(std::string reason, const std::string& message)
      : std::runtime_error(message), reason(std::move(reason)) {}
  std::string reason;  // UPPER_SNAKE_CASE.
};

struct RankStart {
  std::string spec;  // Serialised fedshard.v1.JobSpec.
  std::string job;
  int32_t rank = 0;
  uint64_t generation = 0;
  uint64_t federation_generation = 0;
  std::string data_address;
  int32_t cpu = -1;
  int32_t gpu = 0;
};

struct Assignment {
  int64_t round = 0;
  int64_t steps = 0;
  int64_t first_sample = 0;
  int64_t sample_count = 0;
  int64_t first_step = 0;
  int64_t committed_tokens = 0;
  int64_t tokens_per_step = 0;
  bool must_align = false;  // The groups must be equal after the round.
};

struct Plan {
  int64_t round = 0;
  int32_t attempt = 0;
  std::vector<std::pair<int32_t, double>> weights;  // By participating group.
};

// Write a checkpoint with these counters.
struct CheckpointOrder {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t next_sample = 0;
};

struct Decision {
  int64_t round = 0;
  int32_t attempt = 0;
  bool commit = false;
  bool evaluate = false;
  std::optional<Assignment> next;
  bool finish = false;
  std::string message;
  std::optional<CheckpointOrder> checkpoint;
};

using Directive = std::variant<Plan, Decision>;

struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  bool skipped = false;
};

struct GroupReady {
  int64_t round = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double first_loss = 0;
  double last_loss = 0;
  double step_seconds = 0;
  int64_t skipped_steps = 0;
};

struct Vote {
  int64_t round = 0;
  int32_t attempt = 0;
  uint64_t shard_hash = 0;
  int64_t shard_bytes = 0;
  int64_t replica_bytes = 0;
  int64_t federation_bytes = 0;
  double averaging_seconds = 0;
  int64_t parameters = 0;
  int64_t padded_parameters = 0;
};

struct Evaluation {
  int64_t round = 0;
  double loss_sum = 0;
  int64_t tokens = 0;
};

struct Summary {
  std::string parameter_hash;
  std::vector<uint32_t> sample_tokens;
};

// A checkpoint is complete, or was not written.
struct CheckpointOutcome {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double seconds = 0;
  std::string error;  // Empty = complete.
};

// Called by the training thread only, and only between steps.
class Control {
 public:
  virtual ~Control() = default;
  // Throws Stopped when the rank has been told to end.
  virtual void SendSteps(const std::vector<StepRecord>& steps) = 0;
  virtual void SendReady(const GroupReady& ready) = 0;
  virtual void SendVote(const Vote& vote) = 0;
  virtual void SendEvaluation(const Evaluation& evaluation) = 0;
  virtual void SendSummary(const Summary& summary) = 0;
  virtual void SendCheckpoint(const CheckpointOutcome& outcome) = 0;
  // The next directive. Throws Stopped; Failure (INTERNAL) when none comes within `patience_us`.
  virtual Directive Next(int64_t patience_us) = 0;
  // Throws Stopped when the rank has been told to end.
  virtual void ThrowIfStopped() = 0;
};

}  // namespace fedshard::trainer
