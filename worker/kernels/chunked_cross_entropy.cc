#include "worker/kernels/chunked_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "worker/kernels/cpu_loops.h"
#include "worker/kernels/device_kernels.h"
#include "worker/kernels/matrix_product.h"
#include "worker/kernels/row_access.h"

namespace fedshard::kernels {
namespace {

// A task of at::parallel_for should be worth about this many elements.
constexpr int64_t kElementsPerTask = 32768;

void Check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
           const at::Tensor& logits) {
  TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1),
              "hidden [N, D] and weight [V, D] do not match");
  TORCH_CHECK(targets.dim() == 1 && targets.size(0) == hidden.size(0), "targets must be [N]");
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) == weight.size(0) && logits.is_contiguous(),
              "logits must be [C, V]");
}

// Calls body(row, logits of the row, target) for every row and returns the sum of its results in
// row order.
template <typename T, typename Body>
double SumOverRows(const at::Tensor& logits, const at::Tensor& targets, Body body) {
  const int64_t rows = logits.size(0);
  const int64_t vocabulary = logits.size(1);
  T* data = logits.data_ptr<T>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  std::vector<double> losses(rows);
  const int64_t grain = std::max<int64_t>(1, kElementsPerTask / vocabulary);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      TORCH_CHECK_INDEX(target[row] >= 0 && target[row] < vocabulary, "target ", target[row],
                        " is outside the vocabulary of ", vocabulary);
      losses[row] = body(data + row * vocabulary, target[row]);
    }
  });
  double sum = 0;
  for (double loss : losses) sum += loss;
  return sum;
}

at::Tensor ChunkLoss(const at::Tensor& logits, const at::Tensor& targets) {
  if (!logits.is_cpu()) return DeviceCrossEntropy(logits, targets, std::nullopt);
  const int64_t vocabulary = logits.size(1);
  const double sum = ByElementType(logits, [&](auto element) {
    using T = decltype(element);
    return SumOverRows<T>(logits, targets, [&](const T* row, int64_t target) {
      return CrossEntropyRow(ReadRow(row, vocabulary, 0), vocabulary, target);
    });
  });
  return at::scalar_tensor(sum, at::kDouble);
}

double RowLossWithGradient(float* row, int64_t vocabulary, int64_t target, float scale) {
  return CrossEntropyRowWithGradient(row, vocabulary, target, scale);
}

double RowLossWithGradient(c10::BFloat16* row, int64_t vocabulary, int64_t target, float scale) {
  float* values = ScratchRow(0, vocabulary);
  Bf16ToFloat(reinterpret_cast<const uint16_t*>(row), vocabulary, values);
  const double loss = CrossEntropyRowWithGradient(values, vocabulary, target, scale);
  StoreRow(values, row, vocabulary);
  return loss;
}

// Turns logits into scale * gradient.
at::Tensor ChunkLossWithGradient(const at::Tensor& logits, const at::Tensor& targets,
                                 double scale) {
  if (!logits.is_cpu()) return DeviceCrossEntropy(logits, targets, scale);
  const int64_t vocabulary = logits.size(1);
  const double sum = ByElementType(logits, [&](auto element) {
    using T = decltype(element);
    return SumOverRows<T>(logits, targets, [&](T* row, int64_t target) {
      return RowLossWithGradient(row, vocabulary, target, static_cast<float>(scale));
    });
  });
  return at::scalar_tensor(sum, at::kDouble);
}

}  // namespace

at::Tensor ChunkedCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& targets, const at::Tensor& logits) {
  Check(hidden, weight, targets, logits);
  const at::NoGradGuard no_grad;
  at::Tensor loss = at::zeros({}, hidden.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < hidden.size(0); begin += logits.size(0)) {
    const int64_t count = std::min(logits.size(0), hidden.size(0) - begin);
    const at::Tensor chunk =
        TimesTransposed(hidden.narrow(0, begin, count), weight, logits.narrow(0, 0, count));
    loss.add_(ChunkLoss(chunk, targets.narrow(0, begin, count)));
  }
  return loss;
}

at::Tensor ChunkedCrossEntropyWithGradients(const at::Tensor& hidden, const at::Tensor& weight,
                                            const at::Tensor& targets, double scale,
                                            const at::Tensor& logits, at::Tensor grad_hidden,
                                            at::Tensor grad_weight) {
  Check(hidden, weight, targets, logits);
  const at::NoGradGuard no_grad;
  at::Tensor loss = at::zeros({}, hidden.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < hidden.size(0); begin += logits.size(0)) {
    const int64_t count = std::min(logits.size(0), hidden.size(0) - begin);
    const at::Tensor rows = hidden.narrow(0, begin, count);
    const at::Tensor chunk = TimesTransposed(rows, weight, logits.narrow(0, 0, count));
    loss.add_(ChunkLossWithGradient(chunk, targets.narrow(0, begin, count), scale));
    StoreTimesTransposed(chunk, weight.t(), grad_hidden.narrow(0, begin, count));
    if (begin == 0) {
      StoreTimesTransposed(chunk.t(), rows.t(), grad_weight);
    } else {
      AddTimesTransposed(chunk.t(), rows.t(), grad_weight);
    }
  }
  return loss;
}

}  // namespace fedshard::kernels
