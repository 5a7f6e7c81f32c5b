#include "worker/engine/gradient_reducer.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fedshard::engine {

GradientReducer::GradientReducer(const ModelLayout& layout, const EngineOptions& options,
                                 at::TensorOptions floats, collective::Comm& shard,
                                 collective::Comm& replica)
    : layout_(layout),
      micro_batches_(options.accumulation),
      locally_(options.accumulate_locally && layout.shards() > 1 && options.accumulation > 1),
      bf16_wire_(options.reduce_precision == Precision::kBf16 && layout.shards() > 1),
      shard_(shard),
      replica_(replica) {
  int64_t largest = 0, largest_shard = 0;
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    accumulators_.emplace_back(locally_ ? 1 : micro_batches_, layout.shard_size(unit), floats);
    gaps_.push_back(layout.Gaps(unit));
    if (locally_) whole_.push_back(at::zeros({layout.units()[unit].padded_size}, floats));
    largest_shard = std::max(largest_shard, layout.shard_size(unit));
    if (layout.tied() && unit == layout.embedding_unit()) continue;
    largest = std::max(largest, layout.units()[unit].padded_size);
  }
  written_.resize(accumulators_.size());
  folded_.resize(accumulators_.size());
  sums_.resize(accumulators_.size());
  if (layout.shards() == 1) return;
  for (int i = 0; i < 2; ++i) slots_.push_back(MakeSlot(largest, floats));
  if (layout.tied()) {
    slots_.push_back(MakeSlot(layout.units()[layout.embedding_unit()].padded_size, floats));
  }
  if (bf16_wire_) wire_sum_.emplace(layout.shards(), largest_shard, floats);
}

GradientReducer::Slot GradientReducer::MakeSlot(int64_t elements, at::TensorOptions floats) const {
  Slot slot;
  slot.buffer = at::zeros({elements}, floats);
  if (bf16_wire_) {
    slot.send = at::zeros({elements}, floats.dtype(at::kBFloat16));
    slot.receive = at::zeros_like(slot.send);
  }
  return slot;
}

void GradientReducer::BeginStep() {
  for (ShardAccumulator& accumulator : accumulators_) accumulator.Reset();
  std::fill(written_.begin(), written_.end(), 0);
  std::fill(folded_.begin(), folded_.end(), 0);
  replica_tickets_.clear();
}

GradientReducer::Slot& GradientReducer::SlotOf(int unit) {
  if (layout_.tied() && unit == layout_.embedding_unit()) return slots_.back();
  return slots_[unit % 2];
}

at::Tensor GradientReducer::SlotBuffer(int unit) {
  return SlotOf(unit).buffer.narrow(0, 0, layout_.units()[unit].padded_size);
}

at::Tensor GradientReducer::Buffer(int unit) {
  // Accumulators begin as zeros and only ever see zeros in the padding.
  if (layout_.shards() == 1) return accumulators_[unit].Next();
  if (locally_ && written_[unit] == 0) return whole_[unit];
  Slot& slot = SlotOf(unit);
  if (slot.ticket.pending()) Settle(slot);
  const at::Tensor buffer = SlotBuffer(unit);
  for (const Gap& gap : gaps_[unit]) buffer.narrow(0, gap.begin, gap.end - gap.begin).zero_();
  return buffer;
}

void GradientReducer::Reduce(int unit) {
  ++written_[unit];
  if (layout_.shards() == 1) {
    Accumulated(unit);
  } else if (!locally_) {
    ReduceScatter(unit, SlotBuffer(unit));
  } else {
    if (written_[unit] > 1) whole_[unit].add_(SlotBuffer(unit));
    if (written_[unit] == micro_batches_) ReduceScatter(unit, whole_[unit]);
  }
}

void GradientReducer::ReduceScatter(int unit, const at::Tensor& gradient) {
  Slot& slot = SlotOf(unit);
  if (slot.ticket.pending()) Settle(slot);
  slot.unit = unit;
  if (!bf16_wire_) {
    slot.ticket = shard_.ReduceScatter(gradient, accumulators_[unit].Next());
    return;
  }
  // Every rank sums its own part itself, so the sums need not have the type that travels.
  at::Tensor send = slot.send.narrow(0, 0, gradient.numel());
  send.copy_(gradient);
  slot.ticket = shard_.AllToAll(send, slot.receive.narrow(0, 0, gradient.numel()));
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
  if (bf16_wire_) {
    const int64_t size = layout_.units()[slot.unit].padded_size;
    wire_sum_->Add(slot.receive.narrow(0, 0, size), accumulators_[slot.unit].Next());
  }
  Accumulated(slot.unit);
}

void GradientReducer::Accumulated(int unit) {
  accumulators_[unit].Fold();
  if (++folded_[unit] < (locally_ ? 1 : micro_batches_)) return;
  sums_[unit] = accumulators_[unit].Sum();
  if (replica_.size() > 1) replica_tickets_.push_back(replica_.AllReduce(sums_[unit]));
}

}  // namespace fedshard::engine
