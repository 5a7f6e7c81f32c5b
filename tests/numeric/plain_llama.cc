#include "tests/numeric/plain_llama.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace fedshard::numeric {
namespace {

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return weight * x / at::sqrt(x.square().mean(-1, true) + eps);
}

// x [B, H, T, D].
at::Tensor Rotate(const at::Tensor& x, double theta) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor exponent = at::arange(half, at::kDouble) / static_cast<double>(half);
  const at::Tensor frequency = at::pow(theta, -exponent);
  const at::Tensor angle = at::arange(x.size(2), at::kDouble).unsqueeze(1) * frequency;
  const at::Tensor cosine = at::cat({angle, angle}, 1).cos().to(x.scalar_type());
  const at::Tensor sine = at::cat({angle, angle}, 1).sin().to(x.scalar_type());
  const at::Tensor rotated = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return x * cosine + rotated * sine;
}

at::Tensor Attention(const ModelConfig& c, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v) {
  const int64_t batch = q.size(0);
  const int64_t length = q.size(1);
  const auto split = [&](const at::Tensor& x, int64_t heads) {
    return x.view({batch, length, heads, c.head_dim}).transpose(1, 2);
  };
  const int64_t group = c.num_attention_heads / c.num_key_value_heads;
  const at::Tensor queries = Rotate(split(q, c.num_attention_heads), c.rope_theta);
  const at::Tensor keys =
      Rotate(split(k, c.num_key_value_heads), c.rope_theta).repeat_interleave(group, 1);
  const at::Tensor values = split(v, c.num_key_value_heads).repeat_interleave(group, 1);
  const at::Tensor scores =
      queries.matmul(keys.transpose(2, 3)) / std::sqrt(static_cast<double>(c.head_dim));
  const at::Tensor future =
      at::ones({length, length}, at::TensorOptions(at::kBool)).triu(/*diagonal=*/1);
  const at::Tensor weights =
      at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), 3);
  return weights.matmul(values).transpose(1, 2).reshape({batch, length, -1});
}

at::Tensor Block(const ModelConfig& c, const Parameters& p, const std::string& prefix,
                 const at::Tensor& x) {
  const auto weight = [&](const std::string& name) { return p.at(prefix + name + ".weight"); };
  const at::Tensor a = Norm(x, weight("input_layernorm"), c.rms_norm_eps);
  const at::Tensor attended =
      Attention(c, a.matmul(weight("self_attn.q_proj").t()),
                a.matmul(weight("self_attn.k_proj").t()), a.matmul(weight("self_attn.v_proj").t()));
  const at::Tensor middle = x + attended.matmul(weight("self_attn.o_proj").t());
  const at::Tensor m = Norm(middle, weight("post_attention_layernorm"), c.rms_norm_eps);
  const at::Tensor gate = at::silu(m.matmul(weight("mlp.gate_proj").t()));
  const at::Tensor up = m.matmul(weight("mlp.up_proj").t());
  return middle + (gate * up).matmul(weight("mlp.down_proj").t());
}

}  // namespace

at::Tensor PlainLogits(const ModelConfig& config, const Parameters& parameters,
                       const at::Tensor& tokens) {
  const at::Tensor& embedding = parameters.at("model.embed_tokens.weight");
  at::Tensor x = at::embedding(embedding, tokens);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    x = Block(config, parameters, "model.layers." + std::to_string(i) + ".", x);
  }
  x = Norm(x, parameters.at("model.norm.weight"), config.rms_norm_eps);
  const at::Tensor& head = config.tie_word_embeddings ? embedding : parameters.at("lm_head.weight");
  return x.matmul(head.t()).view({-1, config.vocab_size});
}

at::Tensor PlainLossSum(const ModelConfig& config, const Parameters& parameters,
                        const at::Tensor& tokens) {
  const int64_t length = tokens.size(1) - 1;
  const at::Tensor logits = PlainLogits(config, parameters, tokens.narrow(1, 0, length));
  const at::Tensor targets = tokens.narrow(1, 1, length).reshape({-1, 1});
  return at::log_softmax(logits, 1).gather(1, targets).sum().neg();
}

}  // namespace fedshard::numeric
