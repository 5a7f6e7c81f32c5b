// The block kernels for tensors that are not on the CPU: the CUDA kernels where the plugin has
// them, else the references. Called by the functions of the same names in this room, which say what
// each computes. Differentiable. Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

namespace fedshard::kernels {

at::Tensor DeviceRmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
std::pair<at::Tensor, at::Tensor> DeviceAddRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                                   const at::Tensor& weight, double eps);
std::array<at::Tensor, 3> DeviceRotaryQkv(const at::Tensor& qkv, const at::Tensor& cosine,
                                          const at::Tensor& sine, int64_t batch,
                                          int64_t query_heads, int64_t key_heads);
at::Tensor DeviceSwiglu(const at::Tensor& gate_up);

// Sum over rows of -log softmax(logits)[target], a double tensor []. With `scale`, logits [N, V]
// become scale times their gradient. Without autograd. The CUDA kernel makes the sum NaN where a
// target is outside the vocabulary.
at::Tensor DeviceCrossEntropy(at::Tensor logits, const at::Tensor& targets,
                              std::optional<double> scale);

}  // namespace fedshard::kernels
