// Sums the gradient shards of a step's micro-batches as a pairwise tree over the micro-batch
// number,
// ((0+1)+(2+3))+..., with floor(log2(M))+1 buffers: a binary counter whose digits are partial sums.
// One per unit, owned by the step; used by one thread.
//
// With the collectives' trees over ranks this makes one tree over all micro-batches of the group,
// so the sum has the same bits however a power of two of them is spread over micro-batches, shards
// and replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fedshard::engine {

class ShardAccumulator {
 public:
  // `count` micro-batches of `size` elements (fp32).
  ShardAccumulator(int64_t count, int64_t size, at::TensorOptions options);

  // Forgets all sums; before the first micro-batch of a step.
  void Reset();
  // Where the next micro-batch's shard [size] is to be written.
  at::Tensor Next();
  // Next() has been written.
  void Fold();
  // The sum [size] after exactly `count` Folds; valid until Reset().
  at::Tensor Sum();

 private:
  int64_t count_;
  int64_t folded_ = 0;
  at::Tensor levels_;  // [levels, size]
};

}  // namespace fedshard::engine
