// The way of a unit's gradients: written whole into a buffer, reduce-scattered behind the compute,
// accumulated as shards over micro-batches, and all-reduced over the replicas once per step. Owned
// by the engine; used by one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/collective/comm.h"
#include "worker/engine/shard_accumulator.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

class GradientReducer {
 public:
  GradientReducer(const ModelLayout& layout, int64_t micro_batches, at::TensorOptions options,
                  collective::Comm& shard, collective::Comm& replica);

  void BeginStep();
  // Where the gradient of `unit` of the current micro-batch is to be written, [padded_size];
  // padding is zero already and every parameter must be overwritten. Valid until Reduce(unit);
  // called again before that it returns the same buffer with what was written. Waits for the
  // buffer's previous use.
  at::Tensor Buffer(int unit);
  // The buffer of `unit` is complete.
  void Reduce(int unit);
  // Waits until all gradients of the step are summed.
  void FinishStep();
  // One shard per unit, after FinishStep; may be overwritten.
  const std::vector<at::Tensor>& sums() const { return sums_; }
  // After an error: waits for what is in flight and forgets it.
  void Abandon();

 private:
  struct Slot {
    at::Tensor buffer;  // Of the largest unit that uses it.
    int unit = 0;       // Whose gradient is on its way from it, while the ticket is pending.
    collective::Ticket ticket;
  };

  Slot& SlotOf(int unit);
  void Settle(Slot& slot);
  void Accumulated(int unit);

  const ModelLayout& layout_;
  const int64_t micro_batches_;
  collective::Comm& shard_;
  collective::Comm& replica_;
  std::vector<std::vector<Gap>> gaps_;          // By unit.
  std::vector<ShardAccumulator> accumulators_;  // By unit.
  std::vector<int64_t> folded_;                 // Micro-batches accumulated, by unit.
  std::vector<at::Tensor> sums_;                // By unit.
  // Units alternate between two buffers. The embedding with tied head has a third: it is filled
  // from the loss to the end of the backward pass. None with one shard: gradients are written
  // straight into the accumulators.
  std::vector<Slot> slots_;
  std::vector<collective::Ticket> replica_tickets_;
};

}  // namespace fedshard::engine
