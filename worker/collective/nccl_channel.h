// One NCCL communicator with a stream of its own. Part of the CUDA plugin. Every operation runs on
// that stream behind an event of the caller's current stream; the ticket's Wait() makes the
// caller's current stream wait for it, never the CPU. So a tensor that was allocated on the current
// stream and is freed after Wait() needs no record_stream: the allocator reuses it in stream order.
#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <vector>

#include "worker/collective/comm.h"
#include "worker/collective/failure_watch.h"

namespace fedshard::collective {

class NcclChannel {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

  // `group` is connected. `name` for errors. Operations that do not end within `timeout`, and
  // failures that NCCL reports, end the process.
  NcclChannel(std::string name, Group group, int gpu, std::chrono::milliseconds timeout);
  // Closes the communicator: in order, which waits for the peers, who must destroy theirs in the
  // same order; or by aborting it when an exception unwinds.
  ~NcclChannel();

  // Calls enqueue(group) with this channel's stream as the current one; it must ask for asyncOp =
  // false, which is what keeps ProcessGroupNCCL from using streams and events of its own. `what`
  // must outlive this. Throws CommError after Abort().
  Ticket Issue(const char* what, const std::function<void(c10d::ProcessGroupNCCL&)>& enqueue);
  void Abort();
  void ThrowIfAborted() const;

 private:
  class StreamOperation;
  using Event = std::shared_ptr<at::cuda::CUDAEvent>;

  Event TakeEvent();
  std::optional<std::string> Check();

  const std::string name_;
  const Group group_;
  const c10::DeviceIndex gpu_;
  const at::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent ready_;  // A wait keeps the state that it was enqueued with: one is enough.
  std::vector<Event> events_;  // All ever made; free when only this list holds it.
  PendingOperations pending_;
  PendingOperations closing_;
  std::atomic<bool> aborted_ = false;
  int probe_ = 0;
};

}  // namespace fedshard::collective
