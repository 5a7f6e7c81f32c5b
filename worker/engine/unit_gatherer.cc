#include "worker/engine/unit_gatherer.h"

#include <ATen/ATen.h>

#include <array>
#include <limits>

namespace fedshard::engine {

UnitGatherer::UnitGatherer(const ModelLayout& layout, const std::vector<at::Tensor>& masters,
                           collective::Comm& shard, bool poison, Precision compute, Precision wire)
    : layout_(layout),
      masters_(masters),
      shard_(shard),
      poison_(poison),
      in_place_(layout.shards() == 1 && compute == Precision::kFp32) {
  in_flight_.resize(masters.size());
  if (in_place_) {
    full_ = masters;
    return;
  }
  const auto type = [](Precision p) { return p == Precision::kBf16 ? at::kBFloat16 : at::kFloat; };
  full_ = Allocate(type(compute));
  if (layout.shards() > 1 && wire != compute) arrivals_ = Allocate(type(wire));
}

std::vector<at::Tensor> UnitGatherer::Allocate(at::ScalarType type) const {
  const auto allocate = [&](int unit) {
    return at::zeros({layout_.units()[unit].padded_size}, masters_[unit].options().dtype(type));
  };
  std::array<at::Tensor, 2> ring;
  for (size_t slot = 0; slot < ring.size() && static_cast<int>(slot) < layout_.blocks(); ++slot) {
    ring[slot] = allocate(layout_.block_unit(static_cast<int>(slot)));
  }
  std::vector<at::Tensor> buffers(masters_.size());
  buffers[layout_.embedding_unit()] = allocate(layout_.embedding_unit());
  for (int block = 0; block < layout_.blocks(); ++block) {
    buffers[layout_.block_unit(block)] = ring[block % 2];
  }
  if (!layout_.tied()) buffers[layout_.head_unit()] = allocate(layout_.head_unit());
  return buffers;
}

collective::Ticket UnitGatherer::Gather(int unit, const at::Tensor& whole) {
  const int64_t size = layout_.shard_size(unit);
  whole.narrow(0, shard_.rank() * size, size).copy_(masters_[unit]);
  return shard_.AllGather(whole);
}

void UnitGatherer::Start(int unit) {
  if (in_place_) return;
  in_flight_[unit] = Gather(unit, arrivals_.empty() ? full_[unit] : arrivals_[unit]);
}

void UnitGatherer::Wait(int unit) {
  const bool arrives = in_flight_[unit].pending();
  in_flight_[unit].Wait();
  if (arrives && !arrivals_.empty()) full_[unit].copy_(arrivals_[unit]);
}

at::Tensor UnitGatherer::GatherMaster(int unit) {
  if (layout_.shards() == 1) return masters_[unit];
  at::Tensor whole = full_[unit];
  if (whole.scalar_type() != at::kFloat) whole = at::empty(whole.sizes(), masters_[unit].options());
  Gather(unit, whole).Wait();
  return whole;
}

void UnitGatherer::Release(int unit) {
  if (poison_ && !in_place_) {
    full_[unit].fill_(std::numeric_limits<float>::quiet_NaN());
  }
}

void UnitGatherer::Abandon() {
  for (collective::Ticket& ticket : in_flight_) ticket = collective::Ticket();
}

}  // namespace fedshard::engine
