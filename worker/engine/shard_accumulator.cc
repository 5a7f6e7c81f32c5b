#include "worker/engine/shard_accumulator.h"

#include <ATen/ATen.h>

#include <bit>

namespace fedshard::engine {
namespace {

// The counter's lowest digit that is empty after `folded` micro-batches.
int LowestFree(int64_t folded) { return std::countr_one(static_cast<uint64_t>(folded)); }

}  // namespace

ShardAccumulator::ShardAccumulator(int64_t count, int64_t size, at::TensorOptions options)
    : count_(count) {
  TORCH_CHECK(count > 0, "a step has at least one micro-batch");
  const int64_t levels = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(count)));
  levels_ = at::zeros({levels, size}, options);
}

void ShardAccumulator::Reset() { folded_ = 0; }

at::Tensor ShardAccumulator::Next() {
  TORCH_CHECK(folded_ < count_, "more micro-batches than announced");
  return levels_.select(0, LowestFree(folded_));
}

void ShardAccumulator::Fold() {
  const int free = LowestFree(folded_);
  // The new value carries through the full digits below: each holds the earlier half of a pair.
  at::Tensor carry = levels_.select(0, free);
  for (int level = 0; level < free; ++level) carry.add_(levels_.select(0, level));
  ++folded_;
}

at::Tensor ShardAccumulator::Sum() {
  TORCH_CHECK(folded_ == count_, "sum of ", folded_, " of ", count_, " micro-batches");
  uint64_t digits = static_cast<uint64_t>(count_);
  at::Tensor sum = levels_.select(0, std::countr_zero(digits));
  for (digits &= digits - 1; digits != 0; digits &= digits - 1) {
    sum.add_(levels_.select(0, std::countr_zero(digits)));
  }
  return sum;
}

}  // namespace fedshard::engine
