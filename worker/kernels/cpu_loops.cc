#include "worker/kernels/cpu_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>

// One copy per instruction set, chosen when the program loads.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FEDSHARD_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define FEDSHARD_VECTOR_CLONES
#endif

namespace fedshard::kernels {
namespace {

// Independent partial sums, so that reductions vectorise without reordering by the compiler.
constexpr int64_t kLanes = 16;

// exp(x) to about 1 ulp for x <= 0 (and up to 88), branch-free so that it vectorises: 2^n * p(r), x
// = n ln 2 + r. Inputs below -87 give about 1e-38 instead of smaller values; NaN stays NaN.
inline __attribute__((always_inline)) float Exp(float x) {
  const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits.
  const float shifted = clamped * 1.44269504088896341f + rounder;
  const float n = shifted - rounder;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

inline __attribute__((always_inline)) float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

template <typename T>
inline __attribute__((always_inline)) T SumLanes(const T* lanes) {
  T sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

inline __attribute__((always_inline)) float Maximum(const float* x, int64_t size) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  for (; i < size; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

inline __attribute__((always_inline)) float Dot(const float* x, const float* y, int64_t size) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * y[i + lane];
  }
  for (; i < size; ++i) lanes[0] += x[i] * y[i];
  return SumLanes(lanes);
}

inline __attribute__((always_inline)) float FloatOfBits(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline __attribute__((always_inline)) uint16_t Bf16Bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? 0x7fc0u : rounded);
}

}  // namespace

FEDSHARD_VECTOR_CLONES
double CrossEntropyRow(const float* logits, int64_t vocabulary, int64_t target) {
  const float maximum = Maximum(logits, vocabulary);
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= vocabulary; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += Exp(logits[i + lane] - maximum);
  }
  for (; i < vocabulary; ++i) lanes[0] += Exp(logits[i] - maximum);
  return std::log(static_cast<double>(SumLanes(lanes))) + maximum - logits[target];
}

FEDSHARD_VECTOR_CLONES
double CrossEntropyRowWithGradient(float* logits, int64_t vocabulary, int64_t target, float scale) {
  const float maximum = Maximum(logits, vocabulary);
  const float target_logit = logits[target];
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= vocabulary; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float e = Exp(logits[i + lane] - maximum);
      logits[i + lane] = e;
      lanes[lane] += e;
    }
  }
  for (; i < vocabulary; ++i) lanes[0] += logits[i] = Exp(logits[i] - maximum);
  const float sum = SumLanes(lanes);
  const float factor = scale / sum;
  for (i = 0; i < vocabulary; ++i) logits[i] *= factor;
  logits[target] -= scale;
  return std::log(static_cast<double>(sum)) + maximum - target_logit;
}

FEDSHARD_VECTOR_CLONES
float RmsNormRow(const float* x, const float* weight, int64_t size, double eps, float* y) {
  const float mean = Dot(x, x, size) / static_cast<float>(size);
  const float r = 1.0f / std::sqrt(mean + static_cast<float>(eps));
  for (int64_t i = 0; i < size; ++i) y[i] = weight[i] * (x[i] * r);
  return r;
}

FEDSHARD_VECTOR_CLONES
void RmsNormRowGradient(const float* x, const float* weight, const float* grad_y, float r,
                        int64_t size, float* grad_x) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += grad_y[i + lane] * weight[i + lane] * x[i + lane];
    }
  }
  for (; i < size; ++i) lanes[0] += grad_y[i] * weight[i] * x[i];
  const float shared = SumLanes(lanes) * r * r * r / static_cast<float>(size);
  for (i = 0; i < size; ++i) grad_x[i] = grad_y[i] * weight[i] * r - x[i] * shared;
}

FEDSHARD_VECTOR_CLONES
void RmsNormRowWeightGradient(const float* x, const float* grad_y, float r, int64_t size,
                              float* grad_weight) {
  for (int64_t i = 0; i < size; ++i) grad_weight[i] += grad_y[i] * (x[i] * r);
}

FEDSHARD_VECTOR_CLONES
void SwigluRow(const float* gate, const float* up, int64_t size, float* y) {
  for (int64_t i = 0; i < size; ++i) y[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}

FEDSHARD_VECTOR_CLONES
void SwigluRowGradient(const float* gate, const float* up, const float* grad_y, int64_t size,
                       float* grad_gate, float* grad_up) {
  for (int64_t i = 0; i < size; ++i) {
    const float s = Sigmoid(gate[i]);
    const float silu = gate[i] * s;
    grad_up[i] = grad_y[i] * silu;
    grad_gate[i] = grad_y[i] * up[i] * (s + silu * (1.0f - s));
  }
}

FEDSHARD_VECTOR_CLONES
void RotateHead(const float* x, const float* cosine, const float* sine, int64_t half, float* y) {
  for (int64_t i = 0; i < half; ++i) {
    y[i] = x[i] * cosine[i] - x[half + i] * sine[i];
    y[half + i] = x[half + i] * cosine[i] + x[i] * sine[i];
  }
}

FEDSHARD_VECTOR_CLONES
void RotateHeadBack(const float* x, const float* cosine, const float* sine, int64_t half,
                    float* y) {
  for (int64_t i = 0; i < half; ++i) {
    y[i] = x[i] * cosine[i] + x[half + i] * sine[i];
    y[half + i] = x[half + i] * cosine[i] - x[i] * sine[i];
  }
}

FEDSHARD_VECTOR_CLONES
void Bf16ToFloat(const uint16_t* x, int64_t size, float* y) {
  for (int64_t i = 0; i < size; ++i) y[i] = FloatOfBits(x[i]);
}

FEDSHARD_VECTOR_CLONES
void FloatToBf16(const float* x, int64_t size, uint16_t* y) {
  for (int64_t i = 0; i < size; ++i) y[i] = Bf16Bits(x[i]);
}

FEDSHARD_VECTOR_CLONES
void AdamWBf16(const AdamWFactors& factors, const float* __restrict gradient, int64_t size,
               float* __restrict parameter, uint16_t* __restrict first_moment,
               uint16_t* __restrict second_moment) {
  const AdamWFactors f = factors;
  for (int64_t i = 0; i < size; ++i) {
    const float g = gradient[i];
    const float m = f.beta1 * FloatOfBits(first_moment[i]) + (1.0f - f.beta1) * g;
    const float v = f.beta2 * FloatOfBits(second_moment[i]) + (1.0f - f.beta2) * g * g;
    parameter[i] = f.keep * parameter[i] - f.step * m / (std::sqrt(v) * f.root_factor + f.eps);
    first_moment[i] = Bf16Bits(m);
    second_moment[i] = Bf16Bits(v);
  }
}

FEDSHARD_VECTOR_CLONES
void AddRow(const float* x, int64_t size, float* y) {
  for (int64_t i = 0; i < size; ++i) y[i] += x[i];
}

FEDSHARD_VECTOR_CLONES
double SumOfSquares(const float* x, int64_t size) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = x[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (; i < size; ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
  return SumLanes(lanes);
}

}  // namespace fedshard::kernels
