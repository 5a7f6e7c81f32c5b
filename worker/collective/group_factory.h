// Makes a rank's Comms over a rendezvous store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/mesh.h"
#include "worker/collective/comm.h"

namespace fedshard::collective {

enum class Backend {
  kGloo,        // Tensors in host memory.
  kGlooStaged,  // Gloo for tensors on a GPU, through host memory: several ranks may share one.
  // Tensors on a GPU, one rank each. Between federation groups kGlooStaged: the loss of a group
  // must not take the communicators of the others with it.
  kNccl,
};

struct GroupOptions {
  Backend backend = Backend::kGloo;
  std::string address = "127.0.0.1";          // This rank's collectives listen here.
  std::chrono::milliseconds timeout{60'000};  // Of every wait, rendezvous included.
  int gpu = 0;                                // NCCL: device index.
};

// A rank's groups. `shard`: mesh[f,r,:]; `replica`: mesh[f,:,s]; `federation`: mesh[:,r,s].
// Groups of one rank are SelfComms.
struct MeshComms {
  std::unique_ptr<Comm> shard;
  std::unique_ptr<Comm> replica;
  std::unique_ptr<Comm> federation;

  // Aborts all of them; any thread.
  void Abort();
};

// Connects `rank` of `mesh` to its peers; blocks until they are there. Keys inside a federation
// group go to `group_store`, those between groups to `federation_store` (each already prefixed with
// its generation). Throws CommError.
MeshComms ConnectMesh(const Mesh& mesh, int rank,
                      const c10::intrusive_ptr<c10d::Store>& group_store,
                      const c10::intrusive_ptr<c10d::Store>& federation_store,
                      const GroupOptions& options);

}  // namespace fedshard::collective
