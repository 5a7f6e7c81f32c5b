// Proves that the stream of a parameter has the same values however it is cut, depends on seed and
// name, and is normal with the asked deviation.
#include "worker/engine/initialize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fedshard::engine {
namespace {

std::vector<float> Draw(uint64_t seed, const std::string& name, int64_t begin, int64_t count) {
  std::vector<float> out(count, 1e9f);
  FillNormal(seed, name, 0.02, begin, count, out.data());
  return out;
}

TEST(FillNormal, EveryIntervalAgreesWithTheWhole) {
  const std::vector<float> whole = Draw(1, "a.weight", 0, 100);
  for (int64_t begin = 0; begin < 100; ++begin) {
    for (int64_t count = 0; begin + count <= 100; count += 3) {
      const std::vector<float> part = Draw(1, "a.weight", begin, count);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(part[i], whole[begin + i]);
    }
  }
}

TEST(FillNormal, StreamsDiffer) {
  EXPECT_NE(Draw(1, "a", 0, 8), Draw(2, "a", 0, 8));
  EXPECT_NE(Draw(1, "a", 0, 8), Draw(1, "b", 0, 8));
  EXPECT_EQ(Draw(1, "a", 0, 8), Draw(1, "a", 0, 8));
}

TEST(FillNormal, IsNormal) {
  const std::vector<float> values = Draw(3, "w", 0, 200'000);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  int64_t beyond_two = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double z = values[i] / 0.02;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    beyond_two += std::abs(z) > 2;
    if (i > 0) neighbours += z * values[i - 1] / 0.02;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.1);
  EXPECT_NEAR(beyond_two / n, 0.0455, 0.002);
  EXPECT_NEAR(neighbours / n, 0, 0.01);
}

}  // namespace
}  // namespace fedshard::engine
