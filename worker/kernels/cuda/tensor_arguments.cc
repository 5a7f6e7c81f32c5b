#include "worker/kernels/cuda/tensor_arguments.h"

#include <ATen/ATen.h>

#include <initializer_list>

namespace fedshard::kernels::cuda {
namespace {

// All defined ones are contiguous, on the device of `first` and of its type.
void CheckAlike(const at::Tensor& first, std::initializer_list<at::Tensor> others) {
  TORCH_CHECK(first.is_contiguous(), "CUDA kernels need contiguous tensors");
  for (const at::Tensor& other : others) {
    TORCH_CHECK(!other.defined() || (other.device() == first.device() && other.is_contiguous() &&
                                     other.scalar_type() == first.scalar_type()),
                "CUDA kernels need contiguous tensors of one type on one device, got ",
                other.scalar_type(), " on ", other.device(), " beside ", first.scalar_type(),
                " on ", first.device());
  }
}

const void* Data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

void* MutableData(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

}  // namespace

Element ElementOf(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "no CUDA kernels for ", type);
  return type == at::kFloat ? Element::kFloat : Element::kBf16;
}

RmsNormArguments ForRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                            const at::Tensor& weight, double eps, const at::Tensor& sum,
                            const at::Tensor& y, const at::Tensor& scales) {
  CheckAlike(x, {residual, weight, sum, y});
  RmsNormArguments a = {};
  a.x = Data(x);
  a.residual = Data(residual);
  a.weight = Data(weight);
  a.sum = MutableData(sum);
  a.y = MutableData(y);
  a.scales = scales.data_ptr<float>();
  a.rows = x.size(0);
  a.size = x.size(1);
  a.eps = static_cast<float>(eps);
  return a;
}

RmsNormGradientArguments ForRmsNormGradient(const at::Tensor& x, const at::Tensor& weight,
                                            const at::Tensor& grad_y, const at::Tensor& grad_sum,
                                            const at::Tensor& scales, const at::Tensor& grad_x,
                                            const at::Tensor& partials,
                                            const at::Tensor& grad_weight) {
  CheckAlike(x, {weight, grad_y, grad_sum, grad_x, grad_weight});
  RmsNormGradientArguments a = {};
  a.x = Data(x);
  a.weight = Data(weight);
  a.grad_y = Data(grad_y);
  a.grad_sum = Data(grad_sum);
  a.scales = scales.const_data_ptr<float>();
  a.grad_x = MutableData(grad_x);
  a.partials = partials.data_ptr<float>();
  a.grad_weight = MutableData(grad_weight);
  a.rows = x.size(0);
  a.size = x.size(1);
  return a;
}

RotaryArguments ForRotary(const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
                          const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  CheckAlike(qkv, {q, k, v});
  CheckAlike(cosine, {sine});
  TORCH_CHECK(cosine.scalar_type() == at::kFloat && cosine.size(0) >= q.size(1) &&
                  cosine.size(1) * 2 == q.size(3),
              "rotary: cosine and sine must be fp32 [>= T, head_dim / 2]");
  RotaryArguments a = {};
  a.qkv = MutableData(qkv);
  a.cosine = cosine.const_data_ptr<float>();
  a.sine = sine.const_data_ptr<float>();
  a.q = MutableData(q);
  a.k = MutableData(k);
  a.v = MutableData(v);
  a.rows = qkv.size(0);
  a.length = q.size(1);
  a.query_heads = q.size(2);
  a.key_heads = k.size(2);
  a.head_dim = q.size(3);
  return a;
}

SwigluArguments ForSwiglu(const at::Tensor& gate_up, const at::Tensor& grad_y,
                          const at::Tensor& out) {
  CheckAlike(gate_up, {grad_y, out});
  SwigluArguments a = {};
  a.gate_up = Data(gate_up);
  a.grad_y = Data(grad_y);
  a.out = MutableData(out);
  a.rows = gate_up.size(0);
  a.size = gate_up.size(1) / 2;
  return a;
}

CrossEntropyArguments ForCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                                      const at::Tensor& losses, bool gradient, double scale) {
  CheckAlike(logits, {});
  TORCH_CHECK(targets.is_contiguous() && losses.is_contiguous() &&
                  targets.size(0) == logits.size(0) && losses.size(0) == logits.size(0),
              "cross-entropy: targets and losses must be contiguous [N]");
  CrossEntropyArguments a = {};
  a.logits = MutableData(logits);
  a.targets = targets.const_data_ptr<int64_t>();
  a.losses = losses.data_ptr<double>();
  a.rows = logits.size(0);
  a.vocabulary = logits.size(1);
  a.gradient = gradient;
  a.scale = static_cast<float>(scale);
  return a;
}

}  // namespace fedshard::kernels::cuda
