// A group whose ranks are threads on one GPU, with the asynchrony of NCCL: an operation runs on a
// stream of its own, behind what the caller's stream has done so far, and only tickets order the
// caller's stream behind it. Delays make the transfers late at their beginning and at their end,
// and what they wait for late too; so whoever uses a buffer without waiting, or fills it again too
// early, gets wrong numbers. Test-only.
#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <vector>

#include "common/mutex.h"
#include "worker/collective/fake_comm.h"

namespace fedshard::gpu {

// One group; must outlive its Comms.
class StreamWorld {
 public:
  // `delay`: cycles of each delay; 0 for none.
  StreamWorld(int ranks, int64_t delay);
  std::unique_ptr<collective::Comm> Connect(int rank);

 private:
  friend class StreamComm;
  // What the ranks show each other of the operation that they are all in.
  struct Shown {
    at::Tensor tensor;
    at::cuda::CUDAEvent* ready = nullptr;   // The tensor may be read after it,
    at::cuda::CUDAEvent* copied = nullptr;  // and this rank has read the others' after it.
  };
  // Waits until all ranks have come. Throws CommError after a minute.
  void Meet();

  const int ranks_;
  const int64_t delay_;
  collective::FakeWorld host_;  // For scalars.
  std::vector<Shown> shown_;
  Mutex mu_;
  CondVar changed_;
  int arrived_ GUARDED_BY(mu_) = 0;
  int64_t meetings_ GUARDED_BY(mu_) = 0;
};

}  // namespace fedshard::gpu
