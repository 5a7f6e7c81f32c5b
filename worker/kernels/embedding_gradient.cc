#include "worker/kernels/embedding_gradient.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "worker/kernels/row_access.h"

namespace fedshard::kernels {
namespace {

// Rows of `grad`, those of one token together and in their order.
std::vector<int64_t> RowsByToken(const int64_t* tokens, int64_t count) {
  std::vector<int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(),
                   [tokens](int64_t a, int64_t b) { return tokens[a] < tokens[b]; });
  return rows;
}

template <typename T>
void AddByToken(const at::Tensor& grad, const at::Tensor& tokens, at::Tensor& out) {
  const int64_t count = tokens.size(0);
  const int64_t size = grad.size(1);
  const int64_t* token = tokens.const_data_ptr<int64_t>();
  const T* data = grad.const_data_ptr<T>();
  float* to = out.data_ptr<float>();
  float* sum = ScratchRow(1, size);
  const std::vector<int64_t> rows = RowsByToken(token, count);
  for (int64_t i = 0; i < count;) {
    const int64_t current = token[rows[i]];
    TORCH_CHECK_INDEX(current >= 0 && current < out.size(0), "token ", current,
                      " is outside the vocabulary of ", out.size(0));
    std::fill_n(sum, size, 0.0f);
    for (; i < count && token[rows[i]] == current; ++i) {
      AddRow(ReadRow(data + rows[i] * size, size, 0), size, sum);
    }
    AddRow(sum, size, to + current * size);
  }
}

at::Tensor OnDevice(const at::Tensor& grad, const at::Tensor& tokens, const at::Tensor& out) {
  return at::embedding_dense_backward(grad.to(at::kFloat), tokens, out.size(0),
                                      /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

}  // namespace

void StoreEmbeddingGradient(const at::Tensor& grad, const at::Tensor& tokens, at::Tensor out) {
  if (!grad.is_cpu()) {
    out.copy_(OnDevice(grad, tokens, out));
    return;
  }
  out.zero_();
  AddEmbeddingGradient(grad, tokens, out);
}

void AddEmbeddingGradient(const at::Tensor& grad, const at::Tensor& tokens, at::Tensor out) {
  const at::NoGradGuard no_grad;
  if (!grad.is_cpu()) {
    out.add_(OnDevice(grad, tokens, out));
    return;
  }
  TORCH_CHECK(grad.dim() == 2 && out.dim() == 2 && grad.size(1) == out.size(1) &&
                  grad.size(0) == tokens.numel() && grad.is_contiguous() && out.is_contiguous() &&
                  tokens.is_contiguous() && out.scalar_type() == at::kFloat,
              "embedding gradient: needs grad [N, D], tokens [N], out fp32 [V, D], contiguous");
  ByElementType(grad, [&](auto element) { AddByToken<decltype(element)>(grad, tokens, out); });
}

}  // namespace fedshard::kernels
