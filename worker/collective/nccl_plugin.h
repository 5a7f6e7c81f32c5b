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

// The plugin's one entry point. Throws CommError; NVIDIA's driver and the GPU must be there.
using MakeNcclComm = Comm* (*)(const NcclGroup& group);
inline constexpr char kMakeNcclCommSymbol[] = "fedshard_make_nccl_comm";

// Loads the plugin: $FEDSHARD_CUDA_PLUGIN, else libfedshard_cuda.so beside the executable. Throws
// CommError.
std::unique_ptr<Comm> ConnectNccl(const NcclGroup& group);

}  // namespace fedshard::collective
