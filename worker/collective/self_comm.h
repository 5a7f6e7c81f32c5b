// A group of one: every operation is a copy or nothing. Never fails, except after Abort().
#pragma once

#include <atomic>

#include "worker/collective/comm.h"

namespace fedshard::collective {

class SelfComm : public Comm {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Ticket AllGather(at::Tensor full) override;
  Ticket ReduceScatter(at::Tensor full, at::Tensor shard) override;
  Ticket AllToAll(at::Tensor in, at::Tensor out) override;
  Ticket AllReduce(at::Tensor tensor) override;
  Ticket Broadcast(at::Tensor tensor, int root) override;
  std::vector<std::vector<double>> AllGatherScalars(const std::vector<double>& mine) override;
  std::vector<std::vector<uint64_t>> AllGatherWords(const std::vector<uint64_t>& mine) override;
  void Abort() override { aborted_ = true; }
  int64_t bytes_sent() const override { return 0; }

 private:
  void ThrowIfAborted() const;
  std::atomic<bool> aborted_ = false;
};

}  // namespace fedshard::collective
