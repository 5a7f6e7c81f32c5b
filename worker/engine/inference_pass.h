// Forward passes without gradients over the sharded units. Owned by the engine; used by one thread;
// collective over the shard group.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/key_value_cache.h"
#include "worker/engine/llama.h"
#include "worker/engine/training_pass.h"
#include "worker/engine/unit_gatherer.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

class InferencePass {
 public:
  InferencePass(const ModelLayout& layout, const Llama& model, const ModelWeights& weights,
                UnitGatherer& gatherer, const at::Tensor& logits);

  // tokens: int64 [B, T+1]. Sum of the losses of all B * T tokens, in nats.
  double LossSum(const at::Tensor& tokens);
  // tokens: int64 [n]. Logits [V] after the last of them.
  at::Tensor NextTokenLogits(const at::Tensor& tokens);
  // tokens: int64 [B, n], which follow those in the cache. Logits [B, V] after the last of each
  // row; the cache then has their keys and values, but its length is left to the caller.
  at::Tensor Decode(const at::Tensor& tokens, const KeyValueCache& cache);

 private:
  // Normalised output of the last block, [B * T, D], for inputs [B, T], which follow those in the
  // cache when there is one; the head is gathered and waits for its release.
  at::Tensor Hidden(const at::Tensor& inputs, const KeyValueCache* cache = nullptr);
  void ReleaseHead();

  const ModelLayout& layout_;
  const Llama& model_;
  const ModelWeights& weights_;
  UnitGatherer& gatherer_;
  const at::Tensor logits_;  // Scratch, [chunk, V].
};

}  // namespace fedshard::engine
