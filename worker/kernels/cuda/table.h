// The CUDA kernels as the CUDA plugin offers them to the rest of this room. All calls enqueue on
// the current stream of the tensors' GPU and throw c10::Error; tensors are contiguous, on one GPU,
// and fp32 or bf16, the same for all except where said.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fedshard::kernels::cuda {

struct KernelTable {
  // y = RMSNorm of x [N, D], or of sum = x + residual when `residual` is defined; scales fp32 [N]
  // is for the backward pass.
  void (*rms_norm)(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                   double eps, const at::Tensor& sum, const at::Tensor& y,
                   const at::Tensor& scales);
  // x: what was normalised. grad_sum, added to grad_x, may be undefined.
  void (*rms_norm_gradient)(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad_y,
                            const at::Tensor& grad_sum, const at::Tensor& scales,
                            const at::Tensor& grad_x, const at::Tensor& grad_weight);
  // Shapes as in rotary.h; cosine and sine are fp32. back: qkv is written, from gradients.
  void (*rotary)(bool back, const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
                 const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
  // grad_y undefined: out [N, F] = silu(gate) * up; else out [N, 2F] = the gradient of gate_up.
  void (*swiglu)(const at::Tensor& gate_up, const at::Tensor& grad_y, const at::Tensor& out);
  // losses: double [N]. gradient: logits [N, V] become scale times their gradient.
  void (*cross_entropy)(const at::Tensor& logits, const at::Tensor& targets,
                        const at::Tensor& losses, bool gradient, double scale);
};

// The plugin's entry point; missing in a plugin that was built without nvcc.
using GetKernelTable = const KernelTable* (*)();
inline constexpr char kKernelTableSymbol[] = "fedshard_cuda_kernels";

// The table of the loaded plugin, for tensors like `tensor`; null when it is not on a GPU, its type
// has no kernels, or there are none. Then the references serve.
const KernelTable* KernelsFor(const at::Tensor& tensor);

// For tests without a GPU: `table` serves tensors of every device, until null is set.
void SetTableForTesting(const KernelTable* table);

// Whether ranks on a GPU have kernels of their own here. Loads the plugin.
bool HaveKernels();

}  // namespace fedshard::kernels::cuda
