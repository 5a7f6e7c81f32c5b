// Proves that bf16 support is found where the kernel says that the CPU has it, and that the reason
// names what is missing.
#include "worker/engine/precision_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace fedshard::engine {
namespace {

TEST(WhyNotBf16, AgreesWithTheKernelsListOfCpuFlags) {
  std::ifstream file("/proc/cpuinfo");
  std::stringstream text;
  text << file.rdbuf();
  const std::string flags = text.str();
  if (flags.find("flags") == std::string::npos) GTEST_SKIP() << "no x86 flags here";
  const bool has = flags.find(" avx512_bf16") != std::string::npos ||
                   flags.find(" amx_bf16") != std::string::npos;
  if (has) {
    EXPECT_EQ(WhyNotBf16(false, 0), "");
  } else {
    EXPECT_THAT(WhyNotBf16(false, 0), testing::HasSubstr("AVX512_BF16"));
  }
}

TEST(WhyNotBf16, NamesAGpuThatIsNotThere) {
  EXPECT_THAT(WhyNotBf16(true, 4711),
              testing::AnyOf(testing::HasSubstr("no CUDA driver"), testing::HasSubstr("GPU 4711")));
}

}  // namespace
}  // namespace fedshard::engine
