#include "worker/engine/llama.h"

#include <ATen/ATen.h>

#include "worker/engine/rotary_frequencies.h"
#include "worker/kernels/matrix_product.h"
#include "worker/kernels/rms_norm.h"
#include "worker/kernels/rotary.h"
#include "worker/kernels/swiglu.h"

namespace fedshard::engine {
namespace {

// Consecutive parameters as one matrix: `count` of them from `first` on.
WeightView Stack(const UnitLayout& unit, size_t first, size_t count) {
  int64_t rows = 0;
  for (size_t i = first; i < first + count; ++i) rows += unit.parameters[i].shape[0];
  return {unit.parameters[first].offset, {rows, unit.parameters[first].shape[1]}};
}

// Rows of keys and values repeated for the query heads that share them.
at::Tensor Repeat(const at::Tensor& x, int64_t times) {
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), times, x.size(2), x.size(3)})
      .reshape({x.size(0), x.size(1) * times, x.size(2), x.size(3)});
}

// Writes `x` behind the first `length` rows of `space`; all rows that are there then.
at::Tensor Append(const at::Tensor& space, int64_t length, const at::Tensor& x) {
  space.narrow(2, length, x.size(2)).copy_(x);
  return space.narrow(2, 0, length + x.size(2));
}

}  // namespace

at::Tensor WeightView::Of(const at::Tensor& unit) const {
  int64_t size = 1;
  for (int64_t extent : shape) size *= extent;
  return unit.narrow(0, offset, size).view(shape);
}

std::vector<at::Tensor> BlockWeights::All() const {
  return {qkv, output, gate_up, down, input_norm, post_attention_norm};
}

std::vector<WeightView> BlockWeightViews(const UnitLayout& block) {
  const auto& p = block.parameters;
  TORCH_CHECK(p.size() == 9, "a block has 9 parameters");
  return {Stack(block, 0, 3), Stack(block, 3, 1),        Stack(block, 4, 2),
          Stack(block, 6, 1), {p[7].offset, p[7].shape}, {p[8].offset, p[8].shape}};
}

Llama::Llama(const ModelConfig& config, int64_t length, at::Device device) : config_(config) {
  const int64_t half = config.head_dim / 2;
  const std::vector<float> frequencies = RotaryFrequencies(config);
  at::Tensor angles = at::empty({length, half}, at::kFloat);
  float* angle = angles.data_ptr<float>();
  for (int64_t position = 0; position < length; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      angle[position * half + i] = static_cast<float>(position) * frequencies[i];
    }
  }
  cosine_ = angles.to(at::kDouble).cos().to(at::kFloat).to(device);
  sine_ = angles.to(at::kDouble).sin().to(at::kFloat).to(device);
}

at::Tensor Llama::Block(const at::Tensor& x, const BlockWeights& weights, int64_t batch,
                        const BlockCache* cache) const {
  return FeedForwardPart(x, AttentionPart(x, weights, batch, cache), weights);
}

at::Tensor Llama::AttentionPart(const at::Tensor& x, const BlockWeights& weights, int64_t batch,
                                const BlockCache* cache) const {
  const at::Tensor normed = kernels::RmsNorm(x, weights.input_norm, config_.rms_norm_eps);
  return Attention(kernels::Linear(normed, weights.qkv), batch, cache);
}

at::Tensor Llama::FeedForwardPart(const at::Tensor& x, const at::Tensor& attended,
                                  const BlockWeights& weights) const {
  const auto [middle, again] = AddAttended(attended, x, weights);
  const at::Tensor activated = kernels::Swiglu(kernels::Linear(again, weights.gate_up));
  return kernels::Linear(activated, weights.down, middle);
}

std::pair<at::Tensor, at::Tensor> Llama::AddAttended(const at::Tensor& attended,
                                                     const at::Tensor& x,
                                                     const BlockWeights& weights) const {
  const double eps = config_.rms_norm_eps;
  if (!x.is_cpu()) {
    return kernels::AddRmsNorm(kernels::Linear(attended, weights.output), x,
                               weights.post_attention_norm, eps);
  }
  // On the CPU the sum takes the product's place: a buffer less, and no kernel to fuse it into.
  const at::Tensor middle = kernels::Linear(attended, weights.output, x);
  return {middle, kernels::RmsNorm(middle, weights.post_attention_norm, eps)};
}

at::Tensor Llama::FinalNorm(const at::Tensor& x, const at::Tensor& weight) const {
  return kernels::RmsNorm(x, weight, config_.rms_norm_eps);
}

at::Tensor Llama::Attention(const at::Tensor& qkv, int64_t batch, const BlockCache* cache) const {
  const int64_t heads = config_.num_attention_heads;
  const int64_t key_heads = config_.num_key_value_heads;
  const int64_t length = qkv.size(0) / batch;
  const int64_t past = cache == nullptr ? 0 : cache->length;
  auto [q, k, v] = kernels::RotaryQkv(qkv, cosine_.narrow(0, past, length),
                                      sine_.narrow(0, past, length), batch, heads, key_heads);
  q = q.transpose(1, 2);  // [batch, heads, T, head_dim]
  k = k.transpose(1, 2);
  v = v.transpose(1, 2);
  if (cache != nullptr) {
    k = Append(cache->keys, past, k);
    v = Append(cache->values, past, v);
  }
  bool grouped = heads != key_heads;
  if (grouped && !q.is_cpu() && q.scalar_type() == at::kFloat) {
    // In fp32 no fused CUDA kernel takes grouped heads; three times slower than expanding them.
    k = Repeat(k, heads / key_heads);
    v = Repeat(v, heads / key_heads);
    grouped = false;
  }
  std::optional<at::Tensor> mask;  // Needed by several rows after others: "causal" is for squares.
  if (past > 0 && length > 1) {
    mask = at::ones({length, past + length}, q.options().dtype(at::kBool)).tril(past);
  }
  const at::Tensor attended =
      at::scaled_dot_product_attention(q, k, v, mask, /*dropout_p=*/0.0, /*is_causal=*/past == 0,
                                       /*scale=*/std::nullopt, grouped);
  return attended.transpose(1, 2).reshape({qkv.size(0), heads * config_.head_dim});
}

}  // namespace fedshard::engine
