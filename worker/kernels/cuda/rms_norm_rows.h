// RMSNorm of one row by the lanes of a block, forward and backward, statistics in fp32; optionally
// with the residual addition before it. N elements are moved at once: `size` must be a multiple of
// N, and rows aligned for it.
#pragma once

#include "worker/kernels/cuda/lanes.h"

namespace fedshard::kernels::cuda {

// y = weight * x * r with r = 1 / sqrt(mean(x^2) + eps), which is returned. With `residual`, x +
// residual, rounded to T, takes the place of x and is written to `sum`.
template <int N, typename Threads, typename T>
FEDSHARD_KERNEL_CODE float RmsNormRow(Threads& threads, const T* x, const T* residual,
                                      const T* weight, int64_t size, float eps, T* sum, T* y) {
  const int64_t first = static_cast<int64_t>(threads.lane()) * N;
  const int64_t stride = static_cast<int64_t>(threads.lanes()) * N;
  float squares = 0;
  for (int64_t i = first; i < size; i += stride) {
    float values[N];
    Load<N>(x + i, values);
    if (residual != nullptr) {
      float others[N];
      Load<N>(residual + i, others);
      for (int j = 0; j < N; ++j) values[j] = Rounded<T>(values[j] + others[j]);
      Store<N>(values, sum + i);
    }
    for (int j = 0; j < N; ++j) squares += values[j] * values[j];
  }
  const float mean = Sum(threads, squares) / static_cast<float>(size);
  const float r = 1.0f / sqrtf(mean + eps);
  const T* normed = residual != nullptr ? sum : x;  // Each lane reads what it wrote itself.
  for (int64_t i = first; i < size; i += stride) {
    float values[N], weights[N];
    Load<N>(normed + i, values);
    Load<N>(weight + i, weights);
    for (int j = 0; j < N; ++j) values[j] = weights[j] * (values[j] * r);
    Store<N>(values, y + i);
  }
  return r;
}

// grad_x = the gradient of x for the gradient `grad_y`, given r, plus `grad_sum` where that is
// given: the gradient that reaches x by another way. Adds the row's part of the weight's gradient
// to `grad_weight` [size]; every element always belongs to the same lane.
template <int N, typename Threads, typename T>
FEDSHARD_KERNEL_CODE void RmsNormRowGradient(Threads& threads, const T* x, const T* weight,
                                             const T* grad_y, const T* grad_sum, float r,
                                             int64_t size, T* grad_x, float* grad_weight) {
  const int64_t first = static_cast<int64_t>(threads.lane()) * N;
  const int64_t stride = static_cast<int64_t>(threads.lanes()) * N;
  float dot = 0;
  for (int64_t i = first; i < size; i += stride) {
    float values[N], weights[N], grads[N];
    Load<N>(x + i, values);
    Load<N>(weight + i, weights);
    Load<N>(grad_y + i, grads);
    for (int j = 0; j < N; ++j) dot += grads[j] * weights[j] * values[j];
  }
  const float shared = Sum(threads, dot) * r * r * r / static_cast<float>(size);
  for (int64_t i = first; i < size; i += stride) {
    float values[N], weights[N], grads[N], results[N], totals[N];
    Load<N>(x + i, values);
    Load<N>(weight + i, weights);
    Load<N>(grad_y + i, grads);
    for (int j = 0; j < N; ++j) results[j] = grads[j] * weights[j] * r - values[j] * shared;
    if (grad_sum != nullptr) {
      float others[N];
      Load<N>(grad_sum + i, others);
      for (int j = 0; j < N; ++j) results[j] += others[j];
    }
    Store<N>(results, grad_x + i);
    Load<N>(grad_weight + i, totals);
    for (int j = 0; j < N; ++j) totals[j] += grads[j] * (values[j] * r);
    Store<N>(totals, grad_weight + i);
  }
}

}  // namespace fedshard::kernels::cuda
