// Proves that the CUDA plugin loads into a process that was linked without CUDA, and that without a
// GPU it says so. What it does with one: tests/gpu.
#include "worker/collective/nccl_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "worker/collective/store_adapter.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::collective {
namespace {

bool HaveGpu() { return std::filesystem::exists("/dev/nvidia0"); }

NcclTiers ConnectOne() {
  setenv("FEDSHARD_CUDA_PLUGIN", FEDSHARD_TEST_PLUGIN, 1);
  NcclGroup group;
  group.store = MakeStore(std::make_shared<MemoryKeyValue>(), std::chrono::seconds(30));
  return ConnectNccl(group);
}

TEST(NcclPlugin, SaysThatThereIsNoGpu) {
  if (HaveGpu()) GTEST_SKIP() << "this machine has a GPU";
  try {
    ConnectOne();
    FAIL() << "connected without a GPU";
  } catch (const CommError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("no GPU"));
  }
}

TEST(NcclPlugin, RequireGpuSaysSoWithoutAnyGroup) {
  setenv("FEDSHARD_CUDA_PLUGIN", FEDSHARD_TEST_PLUGIN, 1);
  if (HaveGpu()) {
    EXPECT_NO_THROW(RequireGpu(0));
  }
  try {
    RequireGpu(1000);
    FAIL() << "found a GPU with the index 1000";
  } catch (const CommError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr(HaveGpu() ? "GPU 1000" : "no GPU"));
  }
}

}  // namespace
}  // namespace fedshard::collective
