// What the tests on a GPU share. Each test begins with FEDSHARD_NEEDS_GPU(): without a GPU it is
// skipped, and says so.
#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>

#define FEDSHARD_NEEDS_GPU()                                                        \
  if (!at::cuda::is_available()) {                                                  \
    GTEST_SKIP() << "needs an NVIDIA GPU and its driver; this machine has neither"; \
  }                                                                                 \
  setenv("FEDSHARD_CUDA_PLUGIN", FEDSHARD_TEST_PLUGIN, 1)

namespace fedshard::gpu {

inline at::TensorOptions OnGpu(at::ScalarType type = at::kFloat) {
  return at::TensorOptions().dtype(type).device(at::kCUDA, 0);
}

// Cycles of at::cuda::sleep: a few milliseconds, an age beside the kernels of a test.
inline constexpr int64_t kLongDelay = 10'000'000;

}  // namespace fedshard::gpu
