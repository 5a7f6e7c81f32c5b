// The slow, obvious form of every kernel of this room, in ATen operations that autograd can
// differentiate. Tests compare the kernels with these; devices without own kernels run them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace fedshard::kernels {

// Sum over tokens, in nats, of hidden [N, D], weight [V, D], targets int64 [N].
at::Tensor CrossEntropyReference(const at::Tensor& hidden, const at::Tensor& weight,
                                 const at::Tensor& targets);
// x [N, D], weight [D].
at::Tensor RmsNormReference(const at::Tensor& x, const at::Tensor& weight, double eps);
// gate_up [N, 2F]: gate in the first F columns.
at::Tensor SwigluReference(const at::Tensor& gate_up);
// See RotaryQkv in rotary.h.
std::array<at::Tensor, 3> RotaryQkvReference(const at::Tensor& qkv, const at::Tensor& cosine,
                                             const at::Tensor& sine, int64_t batch,
                                             int64_t query_heads, int64_t key_heads);

}  // namespace fedshard::kernels
