#include "worker/engine/gradient_reducer.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fedshard::engine {

GradientReducer::GradientReducer(const ModelLayout& layout, int64_t micro_batches,
                                 at::TensorOptions options, collective::Comm& shard,
                                 collective::Comm& replica)
    : layout_(layout), micro_batches_(micro_batches), shard_(shard), replica_(replica) {
  int64_t largest = 0;
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    accumulators_.emplace_back(micro_batches, layout.shard_size(unit), options);
    gaps_.push_back(layout.Gaps(unit));
    if (layout.tied() && unit == layout.embedding_unit()) continue;
    largest = std::max(largest, layout.units()[unit].padded_size);
  }
  folded_.resize(accumulators_.size());
  sums_.resize(accumulators_.size());
  if (layout.shards() == 1) return;
  slots_.resize(2);
  for (Slot& slot : slots_) slot.buffer = at::zeros({largest}, options);
  if (layout.tied()) {
    slots_.emplace_back();
    slots_.back().buffer =
        at::zeros({layout.units()[layout.embedding_unit()].padded_size}, options);
  }
}

void GradientReducer::BeginStep() {
  for (ShardAccumulator& accumulator : accumulators_) accumulator.Reset();
  std::fill(folded_.begin(), folded_.end(), 0);
  replica_tickets_.clear();
}

GradientReducer::Slot& GradientReducer::SlotOf(int unit) {
  if (layout_.tied() && unit == layout_.embedding_unit()) return slots_.back();
  return slots_[unit % 2];
}

at::Tensor GradientReducer::Buffer(int unit) {
  // Accumulators begin as zeros and only ever see zeros in the padding.
  if (layout_.shards() == 1) return accumulators_[unit].Next();
  Slot& slot = SlotOf(unit);
  if (slot.ticket.pending()) Settle(slot);
  at::Tensor buffer = slot.buffer.narrow(0, 0, layout_.units()[unit].padded_size);
  for (const Gap& gap : gaps_[unit]) buffer.narrow(0, gap.begin, gap.end - gap.begin).zero_();
  return buffer;
}

void GradientReducer::Reduce(int unit) {
  if (layout_.shards() == 1) {
    Accumulated(unit);
    return;
  }
  Slot& slot = SlotOf(unit);
  slot.unit = unit;
  const at::Tensor buffer = slot.buffer.narrow(0, 0, layout_.units()[unit].padded_size);
  slot.ticket = shard_.ReduceScatter(buffer, accumulators_[unit].Next());
}

void GradientReducer::FinishStep() {
  for (Slot& slot : slots_) {
    if (slot.ticket.pending()) Settle(slot);
  }
  for (collective::Ticket& ticket : replica_tickets_) ticket.Wait();
  replica_tickets_.clear();
}

void GradientReducer::Abandon() {
  for (Slot& slot : slots_) slot.ticket = collective::Ticket();
  replica_tickets_.clear();
}

void GradientReducer::Settle(Slot& slot) {
  slot.ticket.Wait();
  Accumulated(slot.unit);
}

void GradientReducer::Accumulated(int unit) {
  accumulators_[unit].Fold();
  if (++folded_[unit] < micro_batches_) return;
  sums_[unit] = accumulators_[unit].Sum();
  if (replica_.size() > 1) replica_tickets_.push_back(replica_.AllReduce(sums_[unit]));
}

}  // namespace fedshard::engine
