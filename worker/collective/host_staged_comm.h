// Tensors on a GPU over a Comm that moves host memory only, through pinned staging buffers. For
// averaging between federation groups, which must not tie the groups' GPUs together (a lost group
// would take NCCL's communicators of the others with it), and for several ranks on one GPU, which
// NCCL refuses.
//
// As Comm, but slower than it could be: an operation begins with a copy to the host that waits for
// what the caller's stream has to do before it, and Wait() ends with a copy back. Works for host
// tensors too.
#pragma once

#include <memory>
#include <vector>

#include "worker/collective/comm.h"

namespace fedshard::collective {

class HostStagedComm : public Comm {
 public:
  explicit HostStagedComm(std::unique_ptr<Comm> host) : host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Ticket AllGather(at::Tensor full) override;
  Ticket ReduceScatter(at::Tensor full, at::Tensor shard) override;
  Ticket AllToAll(at::Tensor in, at::Tensor out) override;
  Ticket AllReduce(at::Tensor tensor) override;
  Ticket Broadcast(at::Tensor tensor, int root) override;
  std::vector<std::vector<double>> AllGatherScalars(const std::vector<double>& mine) override {
    return host_->AllGatherScalars(mine);
  }
  std::vector<std::vector<uint64_t>> AllGatherWords(const std::vector<uint64_t>& mine) override {
    return host_->AllGatherWords(mine);
  }
  void Abort() override { host_->Abort(); }
  int64_t bytes_sent() const override { return host_->bytes_sent(); }

 private:
  class StagedOperation;

  // A host buffer like `tensor`, of its length; a former one's memory when that is large enough.
  at::Tensor TakeBuffer(const at::Tensor& tensor);
  // When `host` is done: copies `from` to `to` and keeps the buffers for later operations.
  Ticket Started(Ticket host, at::Tensor from, at::Tensor to, std::vector<at::Tensor> buffers);

  std::unique_ptr<Comm> host_;
  std::vector<at::Tensor> free_buffers_;
};

}  // namespace fedshard::collective
