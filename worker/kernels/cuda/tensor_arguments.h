// From tensors to the arguments of the CUDA kernels, with the checks that their pointers need. No
// CUDA here. Throws c10::Error for tensors that are not contiguous, or of different types or
// devices. Undefined tensors become null pointers. See table.h for the shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/kernels/cuda/arguments.h"

namespace fedshard::kernels::cuda {

// c10::Error for types without kernels.
Element ElementOf(const at::Tensor& tensor);

RmsNormArguments ForRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                            const at::Tensor& weight, double eps, const at::Tensor& sum,
                            const at::Tensor& y, const at::Tensor& scales);
// partials: fp32 [blocks of the launch, D].
RmsNormGradientArguments ForRmsNormGradient(const at::Tensor& x, const at::Tensor& weight,
                                            const at::Tensor& grad_y, const at::Tensor& grad_sum,
                                            const at::Tensor& scales, const at::Tensor& grad_x,
                                            const at::Tensor& partials,
                                            const at::Tensor& grad_weight);
RotaryArguments ForRotary(const at::Tensor& qkv, const at::Tensor& cosine, const at::Tensor& sine,
                          const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
SwigluArguments ForSwiglu(const at::Tensor& gate_up, const at::Tensor& grad_y,
                          const at::Tensor& out);
CrossEntropyArguments ForCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                                      const at::Tensor& losses, bool gradient, double scale);

}  // namespace fedshard::kernels::cuda
