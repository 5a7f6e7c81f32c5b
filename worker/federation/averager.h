// Federated averaging of parameter shards: out of place and in two steps, so that nobody applies an
// average before everybody agrees on its bits. Owned and called by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/collective/comm.h"

namespace fedshard::federation {

class Averager {
 public:
  // `shards`: the engine's master shards, which must outlive this. Memory: one shard-sized copy
  // here, and (F-1)/F of a chunk that the Comm receives into.
  Averager(std::vector<at::Tensor>& shards, collective::Comm& federation, int64_t chunk_bytes);

  // Computes sum over groups of weight * shard into the staging copy, chunk by chunk; `weight` is
  // this rank's own and all sum to 1. Collective over the federated group. Returns the hash of the
  // result.
  uint64_t Average(double weight);
  // Makes the average current.
  void Commit();
  // Forgets it.
  void Abort();

 private:
  std::vector<at::Tensor>& shards_;
  collective::Comm& federation_;
  int64_t chunk_elements_;
  std::vector<at::Tensor> staged_;
  bool pending_ = false;
};

}  // namespace fedshard::federation
