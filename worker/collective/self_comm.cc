#include "worker/collective/self_comm.h"

namespace fedshard::collective {

void SelfComm::ThrowIfAborted() const {
  if (aborted_) throw CommError("collective aborted");
}

Ticket SelfComm::AllGather(at::Tensor) {
  ThrowIfAborted();
  return {};
}

Ticket SelfComm::ReduceScatter(at::Tensor full, at::Tensor shard) {
  ThrowIfAborted();
  shard.copy_(full);
  return {};
}

Ticket SelfComm::AllToAll(at::Tensor in, at::Tensor out) {
  ThrowIfAborted();
  out.copy_(in);
  return {};
}

Ticket SelfComm::AllReduce(at::Tensor) {
  ThrowIfAborted();
  return {};
}

Ticket SelfComm::Broadcast(at::Tensor, int) {
  ThrowIfAborted();
  return {};
}

std::vector<std::vector<double>> SelfComm::AllGatherScalars(const std::vector<double>& mine) {
  ThrowIfAborted();
  return {mine};
}

std::vector<std::vector<uint64_t>> SelfComm::AllGatherWords(const std::vector<uint64_t>& mine) {
  ThrowIfAborted();
  return {mine};
}

}  // namespace fedshard::collective
