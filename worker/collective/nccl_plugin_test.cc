// The CUDA plugin loads into a process that was linked without CUDA; without a GPU it says so, with
// one a group of one works.
#include "worker/collective/nccl_plugin.h"

#include <ATen/ATen.h>
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

std::unique_ptr<Comm> ConnectOne() {
  setenv("FEDSHARD_CUDA_PLUGIN", FEDSHARD_TEST_PLUGIN, 1);
  return ConnectNccl({MakeStore(std::make_shared<MemoryKeyValue>(), std::chrono::seconds(30)), 0, 1,
                      0, std::chrono::seconds(30)});
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

TEST(NcclPlugin, GroupOfOneOnAGpu) {
  if (!HaveGpu()) GTEST_SKIP() << "needs a GPU";
  const auto comm = ConnectOne();
  const auto options = at::TensorOptions().device(at::kCUDA, 0);
  at::Tensor full = at::arange(1000, options).to(at::kFloat), shard = at::empty({1000}, options);
  const at::Tensor expected = full.clone();
  comm->AllGather(full).Wait();
  comm->ReduceScatter(full, shard).Wait();
  comm->AllReduce(shard).Wait();
  EXPECT_TRUE(at::equal(shard, expected));
  EXPECT_EQ(comm->AllGatherScalars({3.5})[0][0], 3.5);
}

}  // namespace
}  // namespace fedshard::collective
