// Part of the CUDA plugin: launches on the current stream of the tensors' GPU.
#include "worker/kernels/cuda/table.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "worker/kernels/cuda/geometry.h"
#include "worker/kernels/cuda/launchers.h"
#include "worker/kernels/cuda/tensor_arguments.h"

namespace fedshard::kernels::cuda {
namespace {

// Calls launch(stream) with the GPU of `tensor` as the current one.
template <typename Launch>
void OnStreamOf(const at::Tensor& tensor, Launch launch) {
  TORCH_CHECK(tensor.is_cuda(), "needs a tensor on a GPU, got one on ", tensor.device());
  const c10::cuda::CUDAGuard guard(tensor.device());
  C10_CUDA_CHECK(launch(at::cuda::getCurrentCUDAStream(tensor.device().index()).stream()));
}

void RmsNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps,
             const at::Tensor& sum, const at::Tensor& y, const at::Tensor& scales) {
  const RmsNormArguments a = ForRmsNorm(x, residual, weight, eps, sum, y, scales);
  OnStreamOf(x, [&](cudaStream_t stream) { return LaunchRmsNorm(ElementOf(x), a, stream); });
}

void RmsNormGradient(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad_y,
                     const at::Tensor& grad_sum, const at::Tensor& scales, const at::Tensor& grad_x,
                     const at::Tensor& grad_weight) {
  // Freed behind the launch: the allocator gives it to later work of the same stream only.
  const at::Tensor partials =
      at::empty({RmsNormPartials(x.size(0)), x.size(1)}, x.options().dtype(at::kFloat));
  const RmsNormGradientArguments a =
      ForRmsNormGradient(x, weight, grad_y, grad_sum, scales, grad_x, partials, grad_weight);
  OnStreamOf(x,
             [&](cudaStream_t stream) { return LaunchRmsNormGradient(ElementOf(x), a, stream); });
}

void Rotary(bool back, const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const RotaryArguments a = ForRotary(qkv, cosine, sine, q, k, v);
  OnStreamOf(qkv,
             [&](cudaStream_t stream) { return LaunchRotary(ElementOf(qkv), back, a, stream); });
}

void Swiglu(const at::Tensor& gate_up, const at::Tensor& grad_y, const at::Tensor& out) {
  const SwigluArguments a = ForSwiglu(gate_up, grad_y, out);
  OnStreamOf(gate_up,
             [&](cudaStream_t stream) { return LaunchSwiglu(ElementOf(gate_up), a, stream); });
}

void CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& losses,
                  bool gradient, double scale) {
  const CrossEntropyArguments a = ForCrossEntropy(logits, targets, losses, gradient, scale);
  OnStreamOf(logits,
             [&](cudaStream_t stream) { return LaunchCrossEntropy(ElementOf(logits), a, stream); });
}

constexpr KernelTable kTable = {RmsNorm, RmsNormGradient, Rotary, Swiglu, CrossEntropy};

}  // namespace
}  // namespace fedshard::kernels::cuda

extern "C" const fedshard::kernels::cuda::KernelTable* fedshard_cuda_kernels() {
  return &fedshard::kernels::cuda::kTable;
}
