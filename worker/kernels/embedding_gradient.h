// The gradient of an embedding, written where it is wanted. Stateless.
#pragma once

#include <ATen/core/Tensor.h>

namespace fedshard::kernels {

// out [V, D] (fp32) = or += for each token the sum of its rows of `grad` [N, D] (fp32 or bf16).
// tokens int64 [N] in [0, V). A token's rows are added in their order, beginning with the first,
// and only their sum is added to what is in `out`. The same bits for any number of threads.
void StoreEmbeddingGradient(const at::Tensor& grad, const at::Tensor& tokens, at::Tensor out);
void AddEmbeddingGradient(const at::Tensor& grad, const at::Tensor& tokens, at::Tensor out);

}  // namespace fedshard::kernels
