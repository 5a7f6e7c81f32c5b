// RMSNorm with its gradient in one pass each; on CPU by own loops, elsewhere by device_kernels.h.
// Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace fedshard::kernels {

// weight * x / sqrt(mean(x^2) + eps) over the last dimension. x [N, D] and weight [D], fp32,
// contiguous. Differentiable.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x + residual, both [N, D], and its RmsNorm. Differentiable.
std::pair<at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                             const at::Tensor& weight, double eps);

}  // namespace fedshard::kernels
