// Part of the CUDA plugin: from tensors to launches.
#include "worker/kernels/cuda/table.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <initializer_list>

#include "worker/kernels/cuda/geometry.h"
#include "worker/kernels/cuda/launchers.h"

namespace fedshard::kernels::cuda {
namespace {

Element ElementOf(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "no CUDA kernels for ", type);
  return type == at::kFloat ? Element::kFloat : Element::kBf16;
}

// All defined ones are contiguous, on the GPU of `first` and of its type.
void CheckAlike(const at::Tensor& first, std::initializer_list<at::Tensor> others) {
  TORCH_CHECK(first.is_cuda() && first.is_contiguous(), "needs a contiguous tensor on a GPU");
  for (const at::Tensor& other : others) {
    TORCH_CHECK(!other.defined() || (other.device() == first.device() && other.is_contiguous() &&
                                     other.scalar_type() == first.scalar_type()),
                "needs contiguous tensors of one type on one GPU, got ", other.scalar_type(),
                " on ", other.device(), " beside ", first.scalar_type(), " on ", first.device());
  }
}

const void* Data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
void* MutableData(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

cudaStream_t CurrentStream(const at::Tensor& tensor) {
  return at::cuda::getCurrentCUDAStream(tensor.device().index());
}

void RmsNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps,
             const at::Tensor& sum, const at::Tensor& y, const at::Tensor& scales) {
  CheckAlike(x, {residual, weight, sum, y});
  const c10::cuda::CUDAGuard guard(x.device());
  C10_CUDA_CHECK(
      LaunchRmsNorm(ElementOf(x),
                    {Data(x), Data(residual), Data(weight), MutableData(sum), MutableData(y),
                     scales.data_ptr<float>(), x.size(0), x.size(1), static_cast<float>(eps)},
                    CurrentStream(x)));
}

void RmsNormGradient(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad_y,
                     const at::Tensor& grad_sum, const at::Tensor& scales, const at::Tensor& grad_x,
                     const at::Tensor& grad_weight) {
  CheckAlike(x, {weight, grad_y, grad_sum, grad_x, grad_weight});
  const c10::cuda::CUDAGuard guard(x.device());
  // Freed behind the launch: the allocator gives it to later work of the same stream only.
  const at::Tensor partials =
      at::empty({RmsNormPartials(x.size(0)), x.size(1)}, x.options().dtype(at::kFloat));
  C10_CUDA_CHECK(LaunchRmsNormGradient(
      ElementOf(x),
      {Data(x), Data(weight), Data(grad_y), Data(grad_sum), scales.const_data_ptr<float>(),
       MutableData(grad_x), partials.data_ptr<float>(), MutableData(grad_weight), x.size(0),
       x.size(1)},
      CurrentStream(x)));
}

void Rotary(bool back, const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  CheckAlike(qkv, {q, k, v});
  CheckAlike(cosine, {sine});
  const int64_t length = q.size(1);
  TORCH_CHECK(cosine.scalar_type() == at::kFloat && cosine.size(0) >= length &&
                  cosine.size(1) * 2 == q.size(3),
              "rotary: cosine and sine must be fp32 [>= T, head_dim / 2]");
  const c10::cuda::CUDAGuard guard(qkv.device());
  C10_CUDA_CHECK(
      LaunchRotary(ElementOf(qkv), back,
                   {MutableData(qkv), cosine.const_data_ptr<float>(), sine.const_data_ptr<float>(),
                    MutableData(q), MutableData(k), MutableData(v), qkv.size(0), length, q.size(2),
                    k.size(2), q.size(3)},
                   CurrentStream(qkv)));
}

void Swiglu(const at::Tensor& gate_up, const at::Tensor& grad_y, const at::Tensor& out) {
  CheckAlike(gate_up, {grad_y, out});
  const c10::cuda::CUDAGuard guard(gate_up.device());
  C10_CUDA_CHECK(LaunchSwiglu(
      ElementOf(gate_up),
      {Data(gate_up), Data(grad_y), MutableData(out), gate_up.size(0), gate_up.size(1) / 2},
      CurrentStream(gate_up)));
}

void CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& losses,
                  bool gradient, double scale) {
  CheckAlike(logits, {});
  TORCH_CHECK(targets.is_contiguous() && losses.is_contiguous(), "needs contiguous tensors");
  const c10::cuda::CUDAGuard guard(logits.device());
  C10_CUDA_CHECK(LaunchCrossEntropy(
      ElementOf(logits),
      {MutableData(logits), targets.const_data_ptr<int64_t>(), losses.data_ptr<double>(),
       logits.size(0), logits.size(1), gradient, static_cast<float>(scale)},
      CurrentStream(logits)));
}

constexpr KernelTable kTable = {RmsNorm, RmsNormGradient, Rotary, Swiglu, CrossEntropy};

}  // namespace
}  // namespace fedshard::kernels::cuda

extern "C" const fedshard::kernels::cuda::KernelTable* fedshard_cuda_kernels() {
  return &fedshard::kernels::cuda::kTable;
}
