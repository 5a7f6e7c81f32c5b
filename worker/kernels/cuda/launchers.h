// Starts the CUDA kernels, without ATen, so that nvcc compiles the other side. Each call enqueues
// on `stream` of the current device and returns cudaGetLastError().
#pragma once

#include <cuda_runtime_api.h>

#include "worker/kernels/cuda/arguments.h"

namespace fedshard::kernels::cuda {

cudaError_t LaunchRmsNorm(Element element, const RmsNormArguments& a, cudaStream_t stream);

cudaError_t LaunchRmsNormGradient(Element element, const RmsNormGradientArguments& a,
                                  cudaStream_t stream);

// back: qkv is written from the gradients in q, k and v.
cudaError_t LaunchRotary(Element element, bool back, const RotaryArguments& a, cudaStream_t stream);

cudaError_t LaunchSwiglu(Element element, const SwigluArguments& a, cudaStream_t stream);

cudaError_t LaunchCrossEntropy(Element element, const CrossEntropyArguments& a,
                               cudaStream_t stream);

}  // namespace fedshard::kernels::cuda
