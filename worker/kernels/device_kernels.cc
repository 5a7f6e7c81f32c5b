#include "worker/kernels/device_kernels.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/kernels/cuda/table.h"
#include "worker/kernels/references.h"

namespace fedshard::kernels {
namespace {

using cuda::KernelsFor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor Scales(const at::Tensor& x) {
  return at::empty({x.size(0)}, x.options().dtype(at::kFloat));
}

at::Tensor Floats(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

at::Tensor ContiguousIfDefined(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

// The gradients of what was normalised and of the weight.
variable_list RmsNormGradients(AutogradContext* context, const at::Tensor& grad_y,
                               const at::Tensor& grad_sum) {
  const variable_list saved = context->get_saved_variables();
  const at::Tensor& x = saved[0];
  const at::Tensor& weight = saved[1];
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  KernelsFor(x)->rms_norm_gradient(x, weight, grad_y.contiguous(), ContiguousIfDefined(grad_sum),
                                   saved[2], grad_x, grad_weight);
  return {grad_x, grad_weight};
}

class CudaRmsNorm : public torch::autograd::Function<CudaRmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    at::Tensor y = at::empty_like(x);
    const at::Tensor scales = Scales(x);
    KernelsFor(x)->rms_norm(x, {}, weight, eps, {}, y, scales);
    context->save_for_backward({x, weight, scales});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list result = RmsNormGradients(context, grads[0], {});
    return {result[0], result[1], at::Tensor()};
  }
};

class CudaAddRmsNorm : public torch::autograd::Function<CudaAddRmsNorm> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& residual, const at::Tensor& weight, double eps) {
    at::Tensor sum = at::empty_like(x);
    at::Tensor y = at::empty_like(x);
    const at::Tensor scales = Scales(x);
    KernelsFor(x)->rms_norm(x, residual, weight, eps, sum, y, scales);
    context->save_for_backward({sum, weight, scales});
    return {sum, y};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    // What reaches the sum flows into both addends unchanged.
    const variable_list result = RmsNormGradients(context, grads[1], grads[0]);
    return {result[0], result[0], result[1], at::Tensor()};
  }
};

class CudaRotaryQkv : public torch::autograd::Function<CudaRotaryQkv> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv,
                               const at::Tensor& cosine, const at::Tensor& sine, int64_t batch,
                               int64_t query_heads, int64_t key_heads) {
    const int64_t length = qkv.size(0) / batch;
    const int64_t head_dim = qkv.size(1) / (query_heads + 2 * key_heads);
    at::Tensor q = at::empty({batch, length, query_heads, head_dim}, qkv.options());
    at::Tensor k = at::empty({batch, length, key_heads, head_dim}, qkv.options());
    at::Tensor v = at::empty_like(k);
    KernelsFor(qkv)->rotary(/*back=*/false, qkv, cosine, sine, q, k, v);
    context->save_for_backward({cosine, sine});
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad_q = grads[0].contiguous();
    const at::Tensor grad_k = grads[1].contiguous();
    const at::Tensor grad_v = grads[2].contiguous();
    const int64_t heads = grad_q.size(2) + 2 * grad_k.size(2);
    at::Tensor grad =
        at::empty({grad_q.size(0) * grad_q.size(1), heads * grad_q.size(3)}, grad_q.options());
    KernelsFor(grad)->rotary(/*back=*/true, grad, saved[0], saved[1], grad_q, grad_k, grad_v);
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class CudaSwiglu : public torch::autograd::Function<CudaSwiglu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    at::Tensor y = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    KernelsFor(gate_up)->swiglu(gate_up, {}, y);
    context->save_for_backward({gate_up});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor gate_up = context->get_saved_variables()[0];
    at::Tensor grad = at::empty_like(gate_up);
    KernelsFor(gate_up)->swiglu(gate_up, grads[0].contiguous(), grad);
    return {grad};
  }
};

}  // namespace

at::Tensor DeviceRmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (KernelsFor(x) == nullptr) {
    return RmsNormReference(Floats(x), Floats(weight), eps).to(x.scalar_type());
  }
  return CudaRmsNorm::apply(x, weight, eps);
}

std::pair<at::Tensor, at::Tensor> DeviceAddRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                                   const at::Tensor& weight, double eps) {
  if (KernelsFor(x) == nullptr) {
    const at::Tensor sum = x + residual;
    return {sum, RmsNormReference(Floats(sum), Floats(weight), eps).to(x.scalar_type())};
  }
  const variable_list out = CudaAddRmsNorm::apply(x, residual, weight, eps);
  return {out[0], out[1]};
}

std::array<at::Tensor, 3> DeviceRotaryQkv(const at::Tensor& qkv, const at::Tensor& cosine,
                                          const at::Tensor& sine, int64_t batch,
                                          int64_t query_heads, int64_t key_heads) {
  if (KernelsFor(qkv) == nullptr) {
    std::array<at::Tensor, 3> split =
        RotaryQkvReference(Floats(qkv), cosine, sine, batch, query_heads, key_heads);
    for (at::Tensor& part : split) part = part.to(qkv.scalar_type());
    return split;
  }
  const variable_list out = CudaRotaryQkv::apply(qkv, cosine, sine, batch, query_heads, key_heads);
  return {out[0], out[1], out[2]};
}

at::Tensor DeviceSwiglu(const at::Tensor& gate_up) {
  if (KernelsFor(gate_up) == nullptr) {
    return SwigluReference(Floats(gate_up)).to(gate_up.scalar_type());
  }
  return CudaSwiglu::apply(gate_up);
}

at::Tensor DeviceCrossEntropy(at::Tensor logits, const at::Tensor& targets,
                              std::optional<double> scale) {
  const at::NoGradGuard no_grad;
  if (const cuda::KernelTable* kernels = KernelsFor(logits)) {
    const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
    kernels->cross_entropy(logits, targets.contiguous(), losses, scale.has_value(),
                           scale.value_or(0));
    return losses.sum();
  }
  if (logits.scalar_type() != at::kFloat) {
    const at::Tensor values = Floats(logits);
    const at::Tensor loss = DeviceCrossEntropy(values, targets, scale);
    if (scale) logits.copy_(values);
    return loss;
  }
  const at::Tensor index = targets.unsqueeze(1);
  if (!scale) {
    const at::Tensor picked = at::log_softmax(logits, 1).gather(1, index);
    return picked.to(at::kDouble).sum().neg();
  }
  logits.sub_(at::logsumexp(logits, {1}, /*keepdim=*/true));
  const at::Tensor loss = logits.gather(1, index).to(at::kDouble).sum().neg();
  logits.exp_().mul_(*scale);
  logits.scatter_add_(1, index, at::full(index.sizes(), -*scale, logits.options()));
  return loss;
}

}  // namespace fedshard::kernels
