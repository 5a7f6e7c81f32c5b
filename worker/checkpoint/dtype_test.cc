// Conversion between fp32 and the stored 16-bit types: all 65536 values survive the way through
// fp32, and what lies between two of them rounds to the nearest, ties to even.
#include "worker/checkpoint/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace fedshard::checkpoint {
namespace {

float Widened(DType dtype, uint16_t bits) {
  float value;
  ToFloats(dtype, &bits, 1, &value);
  return value;
}

uint16_t Narrowed(DType dtype, float value) {
  uint16_t bits;
  FromFloats(dtype, &value, 1, &bits);
  return bits;
}

class SixteenBits : public ::testing::TestWithParam<DType> {};

TEST_P(SixteenBits, EveryValueSurvives) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = Widened(GetParam(), static_cast<uint16_t>(bits));
    const uint16_t back = Narrowed(GetParam(), value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Widened(GetParam(), back))) << bits;
    } else {
      EXPECT_EQ(back, bits) << value;
    }
  }
}

TEST_P(SixteenBits, RoundsToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (uint16_t bits = 0; std::isfinite(Widened(GetParam(), bits + 1)); ++bits) {
    const float low = Widened(GetParam(), bits);
    const float high = Widened(GetParam(), bits + 1);
    const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    const uint16_t even = bits % 2 == 0 ? bits : bits + 1;
    // Halfway below the smallest bf16 subnormals is no fp32 value.
    if (middle > low && middle < high) {
      ASSERT_EQ(Narrowed(GetParam(), middle), even) << low;
      ASSERT_EQ(Narrowed(GetParam(), -middle), even | 0x8000) << low;
      ASSERT_EQ(Narrowed(GetParam(), std::nextafter(middle, 0.0f)), bits) << low;
      ASSERT_EQ(Narrowed(GetParam(), std::nextafter(middle, infinity)), bits + 1) << low;
    }
  }
}

TEST_P(SixteenBits, NaNWithAnyPayloadStaysNaN) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7fffffffu}) {
    float value;
    memcpy(&value, &bits, sizeof value);
    EXPECT_TRUE(std::isnan(Widened(GetParam(), Narrowed(GetParam(), value)))) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SixteenBits, ::testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& info) { return DTypeName(info.param); });

TEST(DType, KnowsValuesOfHalf) {
  EXPECT_EQ(Widened(DType::kF16, 0x3c00), 1.0f);
  EXPECT_EQ(Widened(DType::kF16, 0x7bff), 65504.0f);
  EXPECT_EQ(Widened(DType::kF16, 0x0001), 0x1p-24f);
  EXPECT_EQ(Widened(DType::kF16, 0x83ff), -0x1.ff8p-15f);
  EXPECT_TRUE(std::signbit(Widened(DType::kF16, 0x8000)));
  EXPECT_EQ(Narrowed(DType::kF16, 65519.996f), 0x7bff);
  EXPECT_EQ(Narrowed(DType::kF16, 65520.0f), 0x7c00);
  EXPECT_EQ(Narrowed(DType::kF16, -1e30f), 0xfc00);
  EXPECT_EQ(Narrowed(DType::kF16, 0x1p-26f), 0);
  EXPECT_EQ(Narrowed(DType::kF16, std::numeric_limits<float>::denorm_min()), 0);
}

TEST(DType, KnowsValuesOfBrain) {
  EXPECT_EQ(Widened(DType::kBF16, 0x3f80), 1.0f);
  EXPECT_EQ(Narrowed(DType::kBF16, 1.00390625f), 0x3f80);  // Halfway, to even.
  EXPECT_EQ(Narrowed(DType::kBF16, std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Widened(DType::kBF16, 0x0001), 0x1p-133f);
}

TEST(DType, ConvertsRowsWithoutAlignment) {
  const std::vector<float> values = {1, -2, 0.5f, 65504, 0};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<char> bytes(1 + values.size() * BytesOf(dtype));
    FromFloats(dtype, values.data(), static_cast<int64_t>(values.size()), bytes.data() + 1);
    std::vector<float> back(values.size());
    ToFloats(dtype, bytes.data() + 1, static_cast<int64_t>(values.size()), back.data());
    if (dtype == DType::kBF16) back[3] = 65504;  // Not a bf16 value.
    EXPECT_EQ(back, values) << DTypeName(dtype);
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_FALSE(ParseDType("F64"));
}

}  // namespace
}  // namespace fedshard::checkpoint
