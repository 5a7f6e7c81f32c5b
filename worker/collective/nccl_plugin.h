// NCCL, whose code is in the CUDA plugin (worker/cuda_plugin): the plugin's entry points, and the
// calls that load it.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/collective/comm.h"

namespace fedshard::collective {

// A rank's place in its federation group.
struct NcclGroup {
  c10::intrusive_ptr<c10d::Store> store;  // Of the group's generation.
  int shard = 0, shards = 1;
  int replica = 0, replicas = 1;
  int gpu = 0;
  std::chrono::milliseconds timeout{60'000};  // Of every operation, from when it is issued.
  // Communicators for tiers of one rank too, where SelfComm would do: for tests on one GPU.
  bool always = false;
};

struct NcclTiers {
  std::unique_ptr<Comm> shard, replica;
};

// The plugin's entry points. Both throw CommError when NVIDIA's driver or the GPU is not there.
using RequireGpuFunction = void (*)(int gpu);
inline constexpr char kRequireGpuSymbol[] = "fedshard_require_gpu";
using ConnectNcclFunction = void (*)(const NcclGroup& group, NcclTiers& tiers);
inline constexpr char kConnectNcclSymbol[] = "fedshard_connect_nccl";

// Makes LibTorch's CUDA device usable in this process: loads the plugin ($FEDSHARD_CUDA_PLUGIN,
// else libfedshard_cuda.so beside the executable), checks that GPU `gpu` is there and makes it the
// calling thread's current one. Call before any tensor is made on it: a rank without NCCL peers
// needs it too. Throws CommError.
void RequireGpu(int gpu);

// The Comms inside a federation group; blocks until all its ranks are there. Loads the plugin as
// RequireGpu does. Throws CommError.
//
// A failure after that ends the process with kExitNccl (common/trainer_exit.h), from any thread and
// without unwinding: a broken communicator can neither be waited for nor be taken down safely. Only
// after Abort() operations throw, as those of other Comms do.
NcclTiers ConnectNccl(const NcclGroup& group);

}  // namespace fedshard::collective
