#include "worker/kernels/references.h"

#include <ATen/ATen.h>

namespace fedshard::kernels {
namespace {

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half);
  const at::Tensor second = x.narrow(-1, half, half);
  return at::cat({first * cosine - second * sine, second * cosine + first * sine}, -1);
}

}  // namespace

at::Tensor CrossEntropyReference(const at::Tensor& hidden, const at::Tensor& weight,
                                 const at::Tensor& targets) {
  const at::Tensor log_probabilities = at::log_softmax(hidden.matmul(weight.t()), 1);
  return log_probabilities.gather(1, targets.unsqueeze(1)).sum().neg();
}

at::Tensor RmsNormReference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return weight * (x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + eps));
}

at::Tensor SwigluReference(const at::Tensor& gate_up) {
  const int64_t size = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, size)) * gate_up.narrow(1, size, size);
}

std::array<at::Tensor, 3> RotaryQkvReference(const at::Tensor& qkv, const at::Tensor& cosine,
                                             const at::Tensor& sine, int64_t batch,
                                             int64_t query_heads, int64_t key_heads) {
  const int64_t length = qkv.size(0) / batch;
  const int64_t head_dim = qkv.size(1) / (query_heads + 2 * key_heads);
  const at::Tensor heads = qkv.view({batch, length, query_heads + 2 * key_heads, head_dim});
  const at::Tensor cos = cosine.narrow(0, 0, length).unsqueeze(1);  // [T, 1, head_dim / 2]
  const at::Tensor sin = sine.narrow(0, 0, length).unsqueeze(1);
  return {Rotate(heads.narrow(2, 0, query_heads), cos, sin),
          Rotate(heads.narrow(2, query_heads, key_heads), cos, sin),
          heads.narrow(2, query_heads + key_heads, key_heads).contiguous()};
}

}  // namespace fedshard::kernels
