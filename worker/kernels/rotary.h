// Splits the joint projection of a block into queries, keys and values and rotates the first two by
// their positions (rotate-half RoPE, as Hugging Face stores Llama weights); on CPU by own loops,
// elsewhere by device_kernels.h. Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace fedshard::kernels {

// qkv [batch * T, (query_heads + 2 * key_heads) * head_dim]: queries, keys, values; cosine, sine
// [>= T, head_dim / 2], row = position. Returns q [batch, T, query_heads, head_dim], k and v
// [batch, T, key_heads, head_dim]. fp32, contiguous. Differentiable in qkv.
std::array<at::Tensor, 3> RotaryQkv(const at::Tensor& qkv, const at::Tensor& cosine,
                                    const at::Tensor& sine, int64_t batch, int64_t query_heads,
                                    int64_t key_heads);

}  // namespace fedshard::kernels
