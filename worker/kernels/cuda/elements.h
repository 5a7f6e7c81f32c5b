// Elements of fp32 and bf16 tensors in device code: conversions, and loads and stores of several at
// once. The same code compiles for the GPU (nvcc) and, for its tests, for the CPU. Plain C++ and
// CUDA only: nvcc never parses ATen.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#define FEDSHARD_KERNEL_CODE __device__ __forceinline__
#else
#define FEDSHARD_KERNEL_CODE inline
#endif

namespace fedshard::kernels::cuda {

// The bits of a bf16 number: the upper half of the fp32 number with the same value.
struct Bf16 {
  uint16_t bits;
};

FEDSHARD_KERNEL_CODE float ToFloat(float x) { return x; }

FEDSHARD_KERNEL_CODE float ToFloat(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

FEDSHARD_KERNEL_CODE void FromFloat(float x, float& out) { out = x; }

// To the nearest, ties to even; NaN stays NaN.
FEDSHARD_KERNEL_CODE void FromFloat(float x, Bf16& out) {
#ifdef __CUDACC__
  out.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const bool nan = std::isnan(x);
  out.bits =
      nan ? uint16_t{0x7fff} : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// What `x` is once stored as a T.
template <typename T>
FEDSHARD_KERNEL_CODE float Rounded(float x) {
  T stored;
  FromFloat(x, stored);
  return ToFloat(stored);
}

// N neighbours, moved by as few instructions as possible: 16 bytes are the widest.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T values[N];
};

// `from` must be aligned for Pack<T, N>.
template <int N, typename T>
FEDSHARD_KERNEL_CODE void Load(const T* from, float (&out)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
  for (int i = 0; i < N; ++i) out[i] = ToFloat(pack.values[i]);
}

template <int N, typename T>
FEDSHARD_KERNEL_CODE void Store(const float (&values)[N], T* to) {
  Pack<T, N> pack;
  for (int i = 0; i < N; ++i) FromFloat(values[i], pack.values[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

}  // namespace fedshard::kernels::cuda
