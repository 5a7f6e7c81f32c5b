#include "worker/engine/unit_gatherer.h"

#include <ATen/ATen.h>

#include <array>
#include <limits>

namespace fedshard::engine {

UnitGatherer::UnitGatherer(const ModelLayout& layout, const std::vector<at::Tensor>& masters,
                           collective::Comm& shard, bool poison)
    : layout_(layout), masters_(masters), shard_(shard), poison_(poison) {
  in_flight_.resize(masters.size());
  if (layout.shards() == 1) {
    full_ = masters;
    return;
  }
  const auto allocate = [&](int unit) {
    return at::zeros({layout.units()[unit].padded_size}, masters[unit].options());
  };
  std::array<at::Tensor, 2> ring;
  for (size_t slot = 0; slot < ring.size() && static_cast<int>(slot) < layout.blocks(); ++slot) {
    ring[slot] = allocate(layout.block_unit(static_cast<int>(slot)));
  }
  full_.resize(masters.size());
  full_[layout.embedding_unit()] = allocate(layout.embedding_unit());
  for (int block = 0; block < layout.blocks(); ++block) {
    full_[layout.block_unit(block)] = ring[block % 2];
  }
  if (!layout.tied()) full_[layout.head_unit()] = allocate(layout.head_unit());
}

void UnitGatherer::Start(int unit) {
  if (layout_.shards() == 1) return;
  const int64_t size = layout_.shard_size(unit);
  full_[unit].narrow(0, shard_.rank() * size, size).copy_(masters_[unit]);
  in_flight_[unit] = shard_.AllGather(full_[unit]);
}

void UnitGatherer::Wait(int unit) { in_flight_[unit].Wait(); }

void UnitGatherer::Release(int unit) {
  if (poison_ && layout_.shards() > 1) {
    full_[unit].fill_(std::numeric_limits<float>::quiet_NaN());
  }
}

void UnitGatherer::Abandon() {
  for (collective::Ticket& ticket : in_flight_) ticket = collective::Ticket();
}

}  // namespace fedshard::engine
