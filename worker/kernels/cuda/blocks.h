// What one thread block of each kernel does: the rows block, block + blocks, … of the tensors in
// the arguments. T: the element type; N: elements moved at once.
#pragma once

#include "worker/kernels/cuda/arguments.h"
#include "worker/kernels/cuda/cross_entropy_rows.h"
#include "worker/kernels/cuda/elementwise_rows.h"
#include "worker/kernels/cuda/rms_norm_rows.h"

namespace fedshard::kernels::cuda {

template <typename T, int N, typename Threads>
FEDSHARD_KERNEL_CODE void RmsNormBlock(Threads& threads, int64_t block, int64_t blocks,
                                       const RmsNormArguments& a) {
  const bool adds = a.residual != nullptr;
  for (int64_t row = block; row < a.rows; row += blocks) {
    const int64_t at = row * a.size;
    const float r = RmsNormRow<N>(
        threads, static_cast<const T*>(a.x) + at,
        adds ? static_cast<const T*>(a.residual) + at : nullptr, static_cast<const T*>(a.weight),
        a.size, a.eps, adds ? static_cast<T*>(a.sum) + at : nullptr, static_cast<T*>(a.y) + at);
    if (threads.lane() == 0) a.scales[row] = r;
  }
}

// The block's part of the weight's gradient becomes row `block` of `partials`. It is summed up in
// `totals` [size], which may be that row itself; better is shared memory.
template <typename T, int N, typename Threads>
FEDSHARD_KERNEL_CODE void RmsNormGradientBlock(Threads& threads, int64_t block, int64_t blocks,
                                               const RmsNormGradientArguments& a, float* totals) {
  // Element i belongs to the same lane here, in the rows and at the end: no need to synchronise.
  const int64_t first = static_cast<int64_t>(threads.lane()) * N;
  const int64_t stride = static_cast<int64_t>(threads.lanes()) * N;
  for (int64_t i = first; i < a.size; i += stride) {
    for (int j = 0; j < N; ++j) totals[i + j] = 0;
  }
  for (int64_t row = block; row < a.rows; row += blocks) {
    const int64_t at = row * a.size;
    RmsNormRowGradient<N>(threads, static_cast<const T*>(a.x) + at, static_cast<const T*>(a.weight),
                          static_cast<const T*>(a.grad_y) + at,
                          a.grad_sum != nullptr ? static_cast<const T*>(a.grad_sum) + at : nullptr,
                          a.scales[row], a.size, static_cast<T*>(a.grad_x) + at, totals);
  }
  float* partial = a.partials + block * a.size;
  if (partial == totals) return;
  for (int64_t i = first; i < a.size; i += stride) {
    for (int j = 0; j < N; ++j) partial[i + j] = totals[i + j];
  }
}

// Element i of the weight's gradient: the partials, in order.
template <typename T>
FEDSHARD_KERNEL_CODE void SumPartials(const RmsNormGradientArguments& a, int64_t blocks,
                                      int64_t i) {
  float sum = 0;
  for (int64_t row = 0; row < blocks; ++row) sum += a.partials[row * a.size + i];
  FromFloat(sum, static_cast<T*>(a.grad_weight)[i]);
}

template <bool kBack, typename T, int N, typename Threads>
FEDSHARD_KERNEL_CODE void RotaryBlock(Threads& threads, int64_t block, int64_t blocks,
                                      const RotaryArguments& a) {
  const HeadCounts heads{a.query_heads, a.key_heads, a.head_dim / 2};
  const int64_t q_width = a.query_heads * a.head_dim;
  const int64_t k_width = a.key_heads * a.head_dim;
  for (int64_t row = block; row < a.rows; row += blocks) {
    const int64_t angles = row % a.length * heads.half;
    RotaryRow<kBack, N>(threads, static_cast<T*>(a.qkv) + row * (q_width + 2 * k_width),
                        a.cosine + angles, a.sine + angles, heads,
                        static_cast<T*>(a.q) + row * q_width, static_cast<T*>(a.k) + row * k_width,
                        static_cast<T*>(a.v) + row * k_width);
  }
}

template <typename T, int N, typename Threads>
FEDSHARD_KERNEL_CODE void SwigluBlock(Threads& threads, int64_t block, int64_t blocks,
                                      const SwigluArguments& a) {
  for (int64_t row = block; row < a.rows; row += blocks) {
    const T* gate = static_cast<const T*>(a.gate_up) + row * 2 * a.size;
    T* out = static_cast<T*>(a.out);
    if (a.grad_y == nullptr) {
      SwigluRow<N>(threads, gate, gate + a.size, a.size, out + row * a.size);
    } else {
      T* grad = out + row * 2 * a.size;
      SwigluRowGradient<N>(threads, gate, gate + a.size,
                           static_cast<const T*>(a.grad_y) + row * a.size, a.size, grad,
                           grad + a.size);
    }
  }
}

template <bool kGradient, typename T, int N, typename Threads>
FEDSHARD_KERNEL_CODE void CrossEntropyBlock(Threads& threads, int64_t block, int64_t blocks,
                                            const CrossEntropyArguments& a) {
  for (int64_t row = block; row < a.rows; row += blocks) {
    const double loss =
        CrossEntropyRow<kGradient, N>(threads, static_cast<T*>(a.logits) + row * a.vocabulary,
                                      a.vocabulary, a.targets[row], a.scale);
    if (threads.lane() == 0) a.losses[row] = loss;
  }
}

}  // namespace fedshard::kernels::cuda
