#include "worker/kernels/cuda/launch.h"
#include "worker/kernels/cuda/rms_norm_rows.h"

namespace fedshard::kernels::cuda {
namespace {

constexpr int kMostLanes = 512;
constexpr int64_t kMostPartials = 512;
// Totals of a row that fit into the shared memory which every GPU gives without asking.
constexpr int64_t kSharedTotals = 10 * 1024;

template <typename T, int N>
__global__ void RmsNormKernel(RmsNormArguments a) {
  __shared__ float shared[kWarp];
  DeviceThreads threads(shared);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t at = row * a.size;
    const bool adds = a.residual != nullptr;
    const float r = RmsNormRow<N>(
        threads, static_cast<const T*>(a.x) + at,
        adds ? static_cast<const T*>(a.residual) + at : nullptr, static_cast<const T*>(a.weight),
        a.size, a.eps, adds ? static_cast<T*>(a.sum) + at : nullptr, static_cast<T*>(a.y) + at);
    if (threads.lane() == 0) a.scales[row] = r;
  }
}

// Block b takes rows b, b + gridDim.x, …, and writes its part of the weight's gradient to row b of
// `partials`. in_shared: it is summed up in shared memory, else in place.
template <typename T, int N>
__global__ void RmsNormGradientKernel(RmsNormGradientArguments a, bool in_shared) {
  __shared__ float shared[kWarp];
  extern __shared__ float4 shared_totals[];
  DeviceThreads threads(shared);
  float* partial = a.partials + blockIdx.x * a.size;
  float* totals = in_shared ? reinterpret_cast<float*>(shared_totals) : partial;
  // Element i belongs to the same lane here, in the rows and at the end: no need to synchronise.
  const int64_t first = static_cast<int64_t>(threads.lane()) * N;
  const int64_t stride = static_cast<int64_t>(threads.lanes()) * N;
  for (int64_t i = first; i < a.size; i += stride) {
    for (int j = 0; j < N; ++j) totals[i + j] = 0;
  }
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t at = row * a.size;
    RmsNormRowGradient<N>(threads, static_cast<const T*>(a.x) + at, static_cast<const T*>(a.weight),
                          static_cast<const T*>(a.grad_y) + at,
                          a.grad_sum != nullptr ? static_cast<const T*>(a.grad_sum) + at : nullptr,
                          a.scales[row], a.size, static_cast<T*>(a.grad_x) + at, totals);
  }
  if (!in_shared) return;
  for (int64_t i = first; i < a.size; i += stride) {
    for (int j = 0; j < N; ++j) partial[i + j] = totals[i + j];
  }
}

// One lane per element, over the partials in order.
template <typename T>
__global__ void SumPartialsKernel(const float* partials, int64_t count, int64_t size,
                                  T* grad_weight) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (int64_t row = 0; row < count; ++row) sum += partials[row * size + i];
  FromFloat(sum, grad_weight[i]);
}

}  // namespace

cudaError_t LaunchRmsNorm(Element element, const RmsNormArguments& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  WithElement(element, a.size, {a.x, a.residual, a.weight, a.sum, a.y}, [&](auto t, auto width) {
    constexpr int N = decltype(width)::value;
    RmsNormKernel<decltype(t), N>
        <<<BlocksFor(a.rows), LanesFor(a.size / N, kMostLanes), 0, stream>>>(a);
  });
  return cudaGetLastError();
}

int64_t RmsNormPartials(int64_t rows) { return std::clamp<int64_t>(rows, 1, kMostPartials); }

cudaError_t LaunchRmsNormGradient(Element element, const RmsNormGradientArguments& a,
                                  cudaStream_t stream) {
  const int64_t partials = RmsNormPartials(a.rows);
  const bool in_shared = a.size <= kSharedTotals;
  const size_t shared_bytes = in_shared ? a.size * sizeof(float) : 0;
  WithElement(element, a.size, {a.x, a.weight, a.grad_y, a.grad_sum, a.grad_x, a.partials},
              [&](auto t, auto width) {
                using T = decltype(t);
                constexpr int N = decltype(width)::value;
                RmsNormGradientKernel<T, N>
                    <<<static_cast<int>(partials), LanesFor(a.size / N, kMostLanes), shared_bytes,
                       stream>>>(a, in_shared);
                constexpr int kLanes = 128;
                SumPartialsKernel<T>
                    <<<static_cast<int>((a.size + kLanes - 1) / kLanes), kLanes, 0, stream>>>(
                        a.partials, partials, a.size, static_cast<T*>(a.grad_weight));
              });
  return cudaGetLastError();
}

}  // namespace fedshard::kernels::cuda
