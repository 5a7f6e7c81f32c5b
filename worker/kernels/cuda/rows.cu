// The kernels that work on each row alone: rotary split, gated activation, cross-entropy.
#include "worker/kernels/cuda/cross_entropy_rows.h"
#include "worker/kernels/cuda/elementwise_rows.h"
#include "worker/kernels/cuda/launch.h"

namespace fedshard::kernels::cuda {
namespace {

constexpr int kMostLanes = 256;
constexpr int kCrossEntropyLanes = 1024;  // A row of logits is long.

template <bool kBack, typename T, int N>
__global__ void RotaryKernel(RotaryArguments a) {
  DeviceThreads threads(nullptr);
  const HeadCounts heads{a.query_heads, a.key_heads, a.head_dim / 2};
  const int64_t q_width = a.query_heads * a.head_dim;
  const int64_t k_width = a.key_heads * a.head_dim;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t angles = row % a.length * heads.half;
    RotaryRow<kBack, N>(threads, static_cast<T*>(a.qkv) + row * (q_width + 2 * k_width),
                        a.cosine + angles, a.sine + angles, heads,
                        static_cast<T*>(a.q) + row * q_width, static_cast<T*>(a.k) + row * k_width,
                        static_cast<T*>(a.v) + row * k_width);
  }
}

template <typename T, int N>
__global__ void SwigluKernel(SwigluArguments a) {
  DeviceThreads threads(nullptr);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
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

template <bool kGradient, typename T, int N>
__global__ void CrossEntropyKernel(CrossEntropyArguments a) {
  __shared__ float shared[kWarp];
  DeviceThreads threads(shared);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const double loss =
        CrossEntropyRow<kGradient, N>(threads, static_cast<T*>(a.logits) + row * a.vocabulary,
                                      a.vocabulary, a.targets[row], a.scale);
    if (threads.lane() == 0) a.losses[row] = loss;
  }
}

}  // namespace

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
