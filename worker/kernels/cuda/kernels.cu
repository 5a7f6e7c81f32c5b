#include "worker/kernels/cuda/blocks.h"
#include "worker/kernels/cuda/device_threads.h"
#include "worker/kernels/cuda/geometry.h"
#include "worker/kernels/cuda/launchers.h"

namespace fedshard::kernels::cuda {
namespace {

constexpr int kMostLanes = 256;
constexpr int kRmsNormLanes = 512;
constexpr int kCrossEntropyLanes = 1024;  // A row of logits is long.
// Totals of a row that fit into the shared memory which every GPU gives without asking.
constexpr int64_t kSharedTotals = 10 * 1024;

template <typename T, int N>
__global__ void RmsNormKernel(RmsNormArguments a) {
  __shared__ float shared[kWarp];
  DeviceThreads threads(shared);
  RmsNormBlock<T, N>(threads, blockIdx.x, gridDim.x, a);
}

// in_shared: the weight's gradient is summed up in shared memory, else in place.
template <typename T, int N>
__global__ void RmsNormGradientKernel(RmsNormGradientArguments a, bool in_shared) {
  __shared__ float shared[kWarp];
  extern __shared__ float4 totals[];
  DeviceThreads threads(shared);
  RmsNormGradientBlock<T, N>(
      threads, blockIdx.x, gridDim.x, a,
      in_shared ? reinterpret_cast<float*>(totals) : a.partials + blockIdx.x * a.size);
}

template <typename T>
__global__ void SumPartialsKernel(RmsNormGradientArguments a, int blocks) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < a.size) SumPartials<T>(a, blocks, i);
}

template <bool kBack, typename T, int N>
__global__ void RotaryKernel(RotaryArguments a) {
  DeviceThreads threads(nullptr);
  RotaryBlock<kBack, T, N>(threads, blockIdx.x, gridDim.x, a);
}

template <typename T, int N>
__global__ void SwigluKernel(SwigluArguments a) {
  DeviceThreads threads(nullptr);
  SwigluBlock<T, N>(threads, blockIdx.x, gridDim.x, a);
}

template <bool kGradient, typename T, int N>
__global__ void CrossEntropyKernel(CrossEntropyArguments a) {
  __shared__ float shared[kWarp];
  DeviceThreads threads(shared);
  CrossEntropyBlock<kGradient, T, N>(threads, blockIdx.x, gridDim.x, a);
}

}  // namespace

cudaError_t LaunchRmsNorm(Element element, const RmsNormArguments& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  WithElement(element, a.size, {a.x, a.residual, a.weight, a.sum, a.y}, [&](auto t, auto width) {
    constexpr int N = decltype(width)::value;
    RmsNormKernel<decltype(t), N>
        <<<BlocksFor(a.rows), LanesFor(a.size / N, kRmsNormLanes), 0, stream>>>(a);
  });
  return cudaGetLastError();
}

cudaError_t LaunchRmsNormGradient(Element element, const RmsNormGradientArguments& a,
                                  cudaStream_t stream) {
  const int blocks = RmsNormPartials(a.rows);
  const bool in_shared = a.size <= kSharedTotals;
  const size_t shared_bytes = in_shared ? a.size * sizeof(float) : 0;
  WithElement(
      element, a.size, {a.x, a.weight, a.grad_y, a.grad_sum, a.grad_x, a.partials},
      [&](auto t, auto width) {
        using T = decltype(t);
        constexpr int N = decltype(width)::value;
        RmsNormGradientKernel<T, N>
            <<<blocks, LanesFor(a.size / N, kRmsNormLanes), shared_bytes, stream>>>(a, in_shared);
        constexpr int kLanes = 128;
        SumPartialsKernel<T>
            <<<static_cast<int>((a.size + kLanes - 1) / kLanes), kLanes, 0, stream>>>(a, blocks);
      });
  return cudaGetLastError();
}

cudaError_t LaunchRotary(Element element, bool back, const RotaryArguments& a,
                         cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const int64_t half = a.head_dim / 2;
  WithElement(element, half, {a.qkv, a.q, a.k, a.v, a.cosine, a.sine}, [&](auto t, auto width) {
    using T = decltype(t);
    constexpr int N = decltype(width)::value;
    const int lanes = LanesFor((a.query_heads + 2 * a.key_heads) * (half / N), kMostLanes);
    if (back) {
      RotaryKernel<true, T, N><<<BlocksFor(a.rows), lanes, 0, stream>>>(a);
    } else {
      RotaryKernel<false, T, N><<<BlocksFor(a.rows), lanes, 0, stream>>>(a);
    }
  });
  return cudaGetLastError();
}

cudaError_t LaunchSwiglu(Element element, const SwigluArguments& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  WithElement(element, a.size, {a.gate_up, a.grad_y, a.out}, [&](auto t, auto width) {
    constexpr int N = decltype(width)::value;
    SwigluKernel<decltype(t), N>
        <<<BlocksFor(a.rows), LanesFor(a.size / N, kMostLanes), 0, stream>>>(a);
  });
  return cudaGetLastError();
}

cudaError_t LaunchCrossEntropy(Element element, const CrossEntropyArguments& a,
                               cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  WithElement(element, a.vocabulary, {a.logits}, [&](auto t, auto width) {
    using T = decltype(t);
    constexpr int N = decltype(width)::value;
    const int lanes = LanesFor(a.vocabulary / N, kCrossEntropyLanes);
    if (a.gradient) {
      CrossEntropyKernel<true, T, N><<<BlocksFor(a.rows), lanes, 0, stream>>>(a);
    } else {
      CrossEntropyKernel<false, T, N><<<BlocksFor(a.rows), lanes, 0, stream>>>(a);
    }
  });
  return cudaGetLastError();
}

}  // namespace fedshard::kernels::cuda
