// Softmax cross-entropy of one row of logits by the lanes of a block, statistics in fp32. N
// elements are moved at once: the vocabulary must be a multiple of N, and rows aligned for it.
#pragma once

#include "worker/kernels/cuda/lanes.h"

namespace fedshard::kernels::cuda {

// Returns -log softmax[target], in nats, to every lane. With kGradient `logits` becomes scale * d
// loss / d logits. A kernel cannot throw: the loss of a target outside the vocabulary is NaN.
template <bool kGradient, int N, typename Threads, typename T>
FEDSHARD_KERNEL_CODE double CrossEntropyRow(Threads& threads, T* logits, int64_t vocabulary,
                                            int64_t target, float scale) {
  const int64_t first = static_cast<int64_t>(threads.lane()) * N;
  const int64_t stride = static_cast<int64_t>(threads.lanes()) * N;
  const bool valid = target >= 0 && target < vocabulary;
  const float target_logit = valid ? ToFloat(logits[target]) : NAN;
  threads.Sync();  // Another lane may overwrite it below. Shuffles alone do not order memory.
  // One pass for both: the sum is scaled anew whenever a larger logit turns up.
  float largest = -INFINITY, sum = 0;
  for (int64_t i = first; i < vocabulary; i += stride) {
    float values[N];
    Load<N>(logits + i, values);
    float larger = largest;
    for (int j = 0; j < N; ++j) larger = fmaxf(larger, values[j]);
    if (larger > largest) {
      sum *= expf(largest - larger);
      largest = larger;
    }
    for (int j = 0; j < N; ++j) {
      sum += values[j] == -INFINITY ? 0.0f : expf(values[j] - largest);
    }
  }
  const float maximum = Maximum(threads, largest);
  // A lane without elements has -inf and adds nothing.
  sum = Sum(threads, largest > -INFINITY ? sum * expf(largest - maximum) : sum);
  if (kGradient) {
    const float factor = scale / sum;
    for (int64_t i = first; i < vocabulary; i += stride) {
      float values[N];
      Load<N>(logits + i, values);
      for (int j = 0; j < N; ++j) {
        values[j] = expf(values[j] - maximum) * factor - (i + j == target ? scale : 0.0f);
      }
      Store<N>(values, logits + i);
    }
  }
  return log(static_cast<double>(sum)) + maximum - target_logit;
}

}  // namespace fedshard::kernels::cuda
