// The Llama decoder as pure functions of its units: no knowledge of shards, buffers or steps.
// Numerics follow Hugging Face's implementation in fp32. Immutable after construction;
// differentiable.
//
// Activations are [N, hidden_size] with N = batch * T, rows ordered by sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "common/model_config.h"
#include "worker/engine/key_value_cache.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

// Where a block's weights lie in its unit, in the order of BlockWeights. Neighbouring matrices that
// multiply the same activations are one weight.
struct WeightView {
  int64_t offset = 0;
  std::vector<int64_t> shape;

  at::Tensor Of(const at::Tensor& unit) const;  // Shares memory and version counter with `unit`.
};

struct BlockWeights {
  at::Tensor qkv;      // [(heads + 2 * key_value_heads) * head_dim, hidden]
  at::Tensor output;   // [hidden, heads * head_dim]
  at::Tensor gate_up;  // [2 * intermediate, hidden]
  at::Tensor down;     // [hidden, intermediate]
  at::Tensor input_norm;
  at::Tensor post_attention_norm;

  std::vector<at::Tensor> All() const;
};

// In the order of BlockWeights::All().
std::vector<WeightView> BlockWeightViews(const UnitLayout& block);

class Llama {
 public:
  // length: the longest sequence, T.
  Llama(const ModelConfig& config, int64_t length, at::Device device);

  // With a cache the rows follow the tokens in it, and their keys and values are written there.
  at::Tensor Block(const at::Tensor& x, const BlockWeights& weights, int64_t batch,
                   const BlockCache* cache = nullptr) const;
  // The two parts of Block: attention before its output projection, and all that follows.
  at::Tensor AttentionPart(const at::Tensor& x, const BlockWeights& weights, int64_t batch,
                           const BlockCache* cache = nullptr) const;
  at::Tensor FeedForwardPart(const at::Tensor& x, const at::Tensor& attended,
                             const BlockWeights& weights) const;
  at::Tensor FinalNorm(const at::Tensor& x, const at::Tensor& weight) const;

 private:
  // x plus the output projection of `attended`, and its norm.
  std::pair<at::Tensor, at::Tensor> AddAttended(const at::Tensor& attended, const at::Tensor& x,
                                                const BlockWeights& weights) const;
  at::Tensor Attention(const at::Tensor& qkv, int64_t batch, const BlockCache* cache) const;

  const ModelConfig config_;
  at::Tensor cosine_;  // [T, head_dim / 2]
  at::Tensor sine_;
};

}  // namespace fedshard::engine
