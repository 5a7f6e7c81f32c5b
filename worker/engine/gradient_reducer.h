// The way of a unit's gradients: written whole into a buffer, reduce-scattered behind the compute,
// accumulated as shards over micro-batches, and all-reduced over the replicas once per step. Owned
// by the engine; used by one thread.
//
// Accumulating locally: the gradients of all micro-batches are added up whole on each rank, first
// to last, and reduce-scattered once; then the order of the sum is (micro-batches of a rank), ranks
// of the shard group, replicas. It takes a whole fp32 gradient of the model on every rank. With one
// shard there is nothing to save: gradients go the usual way.
//
// Reduced in bf16: gradients are rounded once on their way to the shard group, and summed in fp32.
// Over replicas fp32 sums travel always.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/collective/comm.h"
#include "worker/engine/engine.h"
#include "worker/engine/shard_accumulator.h"
#include "worker/engine/unit_layout.h"
#include "worker/engine/wire_sum.h"

namespace fedshard::engine {

class GradientReducer {
 public:
  // floats: fp32 on the device.
  GradientReducer(const ModelLayout& layout, const EngineOptions& options, at::TensorOptions floats,
                  collective::Comm& shard, collective::Comm& replica);

  void BeginStep();
  // Where the gradient of `unit` of the current micro-batch is to be written, fp32 [padded_size];
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
    // The same in bf16, as sent and as received, when that is what travels.
    at::Tensor send, receive;
    int unit = 0;  // Whose gradient is on its way from it, while the ticket is pending.
    collective::Ticket ticket;
  };

  Slot MakeSlot(int64_t elements, at::TensorOptions floats) const;
  Slot& SlotOf(int unit);
  at::Tensor SlotBuffer(int unit);
  void ReduceScatter(int unit, const at::Tensor& gradient);
  void Settle(Slot& slot);
  void Accumulated(int unit);

  const ModelLayout& layout_;
  const int64_t micro_batches_;
  const bool locally_;
  const bool bf16_wire_;
  collective::Comm& shard_;
  collective::Comm& replica_;
  std::vector<std::vector<Gap>> gaps_;          // By unit.
  std::vector<ShardAccumulator> accumulators_;  // By unit.
  std::vector<int64_t> written_;                // Micro-batches written, by unit.
  std::vector<int64_t> folded_;                 // Micro-batches accumulated, by unit.
  std::vector<at::Tensor> whole_;               // By unit; when accumulating locally.
  std::vector<at::Tensor> sums_;                // By unit.
  std::optional<WireSum> wire_sum_;             // Of bf16.
  // Units alternate between two buffers. The embedding with tied head has a third: it is filled
  // from the loss to the end of the backward pass. None with one shard: gradients are written
  // straight into the accumulators.
  std::vector<Slot> slots_;
  std::vector<collective::Ticket> replica_tickets_;
};

}  // namespace fedshard::engine
