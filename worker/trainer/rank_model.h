// What the round protocol needs of a rank's share of the model: implemented over the engine, faked
// in tests. Training thread only. All functions are collective over the ranks of the group
// (averaging: over all groups). Throws Failure, Stopped, or collective::CommError.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/trainer/control.h"

namespace fedshard::trainer {

struct StepOutcome {
  double loss = 0;
  double gradient_norm = 0;
  int64_t tokens = 0;  // Of the whole group.
  // Loss or gradient was not finite: the parameters are as before; loss and gradient_norm are NaN.
  bool skipped = false;
};

struct SentBytes {
  int64_t shard = 0;
  int64_t replica = 0;
  int64_t federation = 0;
};

class RankModel {
 public:
  virtual ~RankModel() = default;
  // One optimizer step of the group on samples [first_sample, first_sample + samples_per_step).
  virtual StepOutcome Step(int64_t step, int64_t first_sample, double learning_rate) = 0;
  virtual uint64_t ShardHash() = 0;
  // Begins to average the parameters as they are now in the background, all groups weighing the
  // same; what training changes until CommitAverage stays and is added.
  virtual void BeginAverage() = 0;
  // Averages out of place with this group's weight, or finishes what BeginAverage began with it;
  // the hash of the result.
  virtual uint64_t Average(double weight) = 0;
  virtual void CommitAverage() = 0;
  virtual void DropAverage() = 0;
  // This group's part of the evaluation: sum of losses (nats) and tokens.
  virtual std::pair<double, int64_t> Evaluate() = 0;
  virtual std::string ParameterHash() = 0;
  // Begins to write a checkpoint of the parameters as they are now; returns when they are copied.
  virtual void SaveCheckpoint(const CheckpointOrder& order) = 0;
  // What became of checkpoints since the last call; `wait`: until all that were begun are decided.
  virtual std::vector<CheckpointOutcome> CheckpointOutcomes(bool wait) = 0;
  // Text from the model; empty on ranks that take no part or when none is wanted.
  virtual std::vector<uint32_t> Sample() = 0;
  // Sent so far, evaluations and all.
  virtual SentBytes Sent() = 0;
  virtual int64_t parameters() = 0;
  virtual int64_t padded_parameters() = 0;
};

}  // namespace fedshard::trainer
