// The CUDA half of the room lives in libfedshard_cuda.so, which is loaded only by ranks on a GPU: a
// CPU rank would pay half a second and hundreds of megabytes for libraries it never calls.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "worker/collective/comm.h"

namespace fedshard::collective {

struct NcclGroup {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  int gpu = 0;
  std::chrono::milliseconds timeout{60'000};
};

// The plugin's entry points. Both throw CommError when NVIDIA's driver or the GPU is not there.
using RequireGpuFunction = void (*)(int gpu);
inline constexpr char kRequireGpuSymbol[] = "fedshard_require_gpu";
using MakeNcclComm = Comm* (*)(const NcclGroup& group);
inline constexpr char kMakeNcclCommSymbol[] = "fedshard_make_nccl_comm";

// Makes LibTorch's CUDA device usable in this process: loads the plugin ($FEDSHARD_CUDA_PLUGIN,
// else libfedshard_cuda.so beside the executable) and checks that GPU `gpu` is there. Call before
// any tensor is made on it: a rank without NCCL peers needs it too. Throws CommError.
void RequireGpu(int gpu);

// Loads the plugin as RequireGpu does. Throws CommError.
std::unique_ptr<Comm> ConnectNccl(const NcclGroup& group);

}  // namespace fedshard::collective
