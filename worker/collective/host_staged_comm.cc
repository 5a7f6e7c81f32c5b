#include "worker/collective/host_staged_comm.h"

#include <ATen/Functions.h>

#include <utility>

namespace fedshard::collective {

class HostStagedComm::StagedOperation : public Ticket::Operation {
 public:
  StagedOperation(HostStagedComm& comm, Ticket host, at::Tensor from, at::Tensor to,
                  std::vector<at::Tensor> buffers)
      : comm_(comm),
        host_(std::move(host)),
        from_(std::move(from)),
        to_(std::move(to)),
        buffers_(std::move(buffers)) {}

  void Finish() override {
    host_.Wait();
    to_.copy_(from_);  // Returns when the copy is done, so the buffer may be used again.
    for (at::Tensor& buffer : buffers_) comm_.free_buffers_.push_back(std::move(buffer));
  }

 private:
  HostStagedComm& comm_;
  Ticket host_;
  const at::Tensor from_, to_;
  std::vector<at::Tensor> buffers_;
};

at::Tensor HostStagedComm::TakeBuffer(const at::Tensor& tensor) {
  for (size_t i = 0; i < free_buffers_.size(); ++i) {
    at::Tensor& found = free_buffers_[i];
    if (found.numel() < tensor.numel() || found.dtype() != tensor.dtype()) continue;
    at::Tensor buffer = std::move(found);
    free_buffers_.erase(free_buffers_.begin() + static_cast<std::ptrdiff_t>(i));
    return buffer;
  }
  return at::empty({tensor.numel()},
                   at::TensorOptions().dtype(tensor.dtype()).pinned_memory(tensor.is_cuda()));
}

Ticket HostStagedComm::Started(Ticket host, at::Tensor from, at::Tensor to,
                               std::vector<at::Tensor> buffers) {
  return Ticket(std::make_unique<StagedOperation>(*this, std::move(host), std::move(from),
                                                  std::move(to), std::move(buffers)));
}

Ticket HostStagedComm::AllGather(at::Tensor full) {
  at::Tensor buffer = TakeBuffer(full);
  at::Tensor host = buffer.narrow(0, 0, full.numel());
  const int64_t part = full.numel() / size();
  host.narrow(0, rank() * part, part).copy_(full.narrow(0, rank() * part, part));
  return Started(host_->AllGather(host), host, full, {buffer});
}

Ticket HostStagedComm::ReduceScatter(at::Tensor full, at::Tensor shard) {
  at::Tensor full_buffer = TakeBuffer(full), shard_buffer = TakeBuffer(shard);
  at::Tensor host = full_buffer.narrow(0, 0, full.numel());
  at::Tensor result = shard_buffer.narrow(0, 0, shard.numel());
  host.copy_(full);
  return Started(host_->ReduceScatter(host, result), result, shard, {full_buffer, shard_buffer});
}

Ticket HostStagedComm::AllToAll(at::Tensor in, at::Tensor out) {
  at::Tensor in_buffer = TakeBuffer(in), out_buffer = TakeBuffer(out);
  at::Tensor from = in_buffer.narrow(0, 0, in.numel());
  at::Tensor to = out_buffer.narrow(0, 0, out.numel());
  from.copy_(in);
  return Started(host_->AllToAll(from, to), to, out, {in_buffer, out_buffer});
}

Ticket HostStagedComm::AllReduce(at::Tensor tensor) {
  at::Tensor buffer = TakeBuffer(tensor);
  at::Tensor host = buffer.narrow(0, 0, tensor.numel());
  host.copy_(tensor);
  return Started(host_->AllReduce(host), host, tensor, {buffer});
}

Ticket HostStagedComm::Broadcast(at::Tensor tensor, int root) {
  at::Tensor buffer = TakeBuffer(tensor);
  at::Tensor host = buffer.narrow(0, 0, tensor.numel());
  if (rank() == root) host.copy_(tensor);
  return Started(host_->Broadcast(host, root), host, tensor, {buffer});
}

}  // namespace fedshard::collective
