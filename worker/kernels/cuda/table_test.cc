// Proves that the CUDA plugin brings the kernels exactly when they were built, in a process that
// was linked without CUDA, and that tensors of the CPU never get them.
#include "worker/kernels/cuda/table.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace fedshard::kernels::cuda {
namespace {

TEST(KernelTable, ComesWithThePlugin) {
  setenv("FEDSHARD_CUDA_PLUGIN", FEDSHARD_TEST_PLUGIN, 1);
  EXPECT_EQ(HaveKernels(), FEDSHARD_TEST_KERNELS != 0);
  EXPECT_EQ(KernelsFor(at::zeros({2, 2})), nullptr);
}

}  // namespace
}  // namespace fedshard::kernels::cuda
