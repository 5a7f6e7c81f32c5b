// NCCL with a group of one, all that one GPU allows: the values of every operation; that operations
// wait for what the caller's stream still has to do, and the caller's stream for them; and that an
// operation which does not end in time ends the process with its own exit code.
#include <ATen/ATen.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>

#include "common/trainer_exit.h"
#include "tests/gpu/gpu.h"
#include "worker/collective/nccl_plugin.h"
#include "worker/collective/store_adapter.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::collective {
namespace {

using gpu::OnGpu;

NcclTiers ConnectAlone(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  NcclGroup group;
  group.store = MakeStore(std::make_shared<MemoryKeyValue>(), std::chrono::seconds(60));
  group.timeout = timeout;
  group.always = true;
  return ConnectNccl(group);
}

TEST(Nccl, EveryOperationOfAGroupOfOne) {
  FEDSHARD_NEEDS_GPU();
  const NcclTiers tiers = ConnectAlone();
  for (Comm* comm : {tiers.shard.get(), tiers.replica.get()}) {
    at::Tensor full = at::arange(1000, OnGpu()), shard = at::zeros({1000}, OnGpu());
    const at::Tensor expected = full.clone();
    comm->AllGather(full).Wait();
    comm->ReduceScatter(full, shard).Wait();
    comm->AllReduce(shard).Wait();
    comm->Broadcast(shard, 0).Wait();
    EXPECT_TRUE(at::equal(shard, expected));
    EXPECT_EQ(comm->AllGatherScalars({3.5, -1}), (std::vector<std::vector<double>>{{3.5, -1}}));
    EXPECT_EQ(comm->AllGatherWords({7}), (std::vector<std::vector<uint64_t>>{{7}}));
    EXPECT_EQ(comm->bytes_sent(), 0);
  }
}

TEST(Nccl, TicketsOrderTheStreams) {
  FEDSHARD_NEEDS_GPU();
  const NcclTiers tiers = ConnectAlone();
  const c10::cuda::CUDAStreamGuard guard(at::cuda::getStreamFromPool());
  at::Tensor full = at::zeros({1 << 20}, OnGpu()), shard = at::zeros({1 << 20}, OnGpu());
  for (int i = 1; i <= 20; ++i) {
    at::cuda::sleep(gpu::kLongDelay);  // What the reduction reads is not there yet.
    full.fill_(i);
    Ticket ticket = tiers.shard->ReduceScatter(full, shard);
    ticket.Wait();
    const at::Tensor seen = shard.clone();
    full.zero_();  // The reduction must have read it.
    EXPECT_TRUE(at::equal(seen, at::full_like(seen, i)));
  }
}

TEST(Nccl, AbortMakesOperationsThrow) {
  FEDSHARD_NEEDS_GPU();
  const NcclTiers tiers = ConnectAlone();
  tiers.shard->Abort();
  at::Tensor full = at::zeros({16}, OnGpu());
  EXPECT_THROW(tiers.shard->AllGather(full), CommError);
  EXPECT_THROW(tiers.shard->AllGatherScalars({1}), CommError);
}

TEST(Nccl, AnOperationThatDoesNotEndEndsTheProcess) {
  FEDSHARD_NEEDS_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const NcclTiers tiers = ConnectAlone(std::chrono::milliseconds(200));
        at::Tensor tensor = at::zeros({16}, OnGpu());
        for (int i = 0; i < 2000; ++i) at::cuda::sleep(gpu::kLongDelay);  // Seconds.
        Ticket ticket = tiers.shard->AllReduce(tensor);
        at::cuda::getCurrentCUDAStream().synchronize();
        ticket.Wait();
        tensor.cpu();
      },
      ::testing::ExitedWithCode(kExitNccl), "reduce: all-reduce did not end within 200 ms");
}

}  // namespace
}  // namespace fedshard::collective
