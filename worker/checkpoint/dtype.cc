#include "worker/checkpoint/dtype.h"

#include <bit>
#include <cstring>

namespace fedshard::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored little endian");

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // Zero or subnormal: a multiple of 2^-24, exact in fp32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {  // The quiet bit, so that no payload turns into infinity.
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round beyond the largest, 65504.
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a multiple of 2^-24, which is the last place of 0.5: the addition
    // rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(shifted) - 0x3f000000u;
  } else {
    const uint32_t odd = (magnitude >> 13) & 1u;
    half = (magnitude + 0xfffu + odd - 0x38000000u) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

float BrainToFloat(uint16_t brain) {
  return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16);
}

uint16_t FloatToBrain(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7fffu + odd) >> 16);
}

template <float (*Convert)(uint16_t)>
void Widen(const void* in, int64_t count, float* out) {
  const auto* bytes = static_cast<const char*>(in);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t value;
    memcpy(&value, bytes + 2 * i, sizeof value);
    out[i] = Convert(value);
  }
}

template <uint16_t (*Convert)(float)>
void Narrow(const float* in, int64_t count, void* out) {
  auto* bytes = static_cast<char*>(out);
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t value = Convert(in[i]);
    memcpy(bytes + 2 * i, &value, sizeof value);
  }
}

}  // namespace

int64_t BytesOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

std::string DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
  }
  return "";
}

std::optional<DType> ParseDType(const std::string& name) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

void ToFloats(DType dtype, const void* in, int64_t count, float* out) {
  switch (dtype) {
    case DType::kF32:
      if (count > 0) memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      return Widen<HalfToFloat>(in, count, out);
    case DType::kBF16:
      return Widen<BrainToFloat>(in, count, out);
  }
}

void FromFloats(DType dtype, const float* in, int64_t count, void* out) {
  switch (dtype) {
    case DType::kF32:
      if (count > 0) memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      return Narrow<FloatToHalf>(in, count, out);
    case DType::kBF16:
      return Narrow<FloatToBrain>(in, count, out);
  }
}

}  // namespace fedshard::checkpoint
