// The collectives of Comm over point-to-point messages: direct exchange between all pairs,
// staggered so that nobody is sent to by everyone at once. The same bytes on the wire as a ring,
// one addition per addend in the order of tree_sum.h, and no hidden copies: receives go where the
// data is wanted, or into a staging buffer that later operations use again.
//
// Why not Gloo's own: its reduce-scatter is an all-reduce of a clone, its all-gather copies through
// a temporary, and neither fixes the order of the sums (docs/benchmarks.md has the measured
// ratios).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "worker/collective/comm.h"
#include "worker/collective/link.h"

namespace fedshard::collective {

class LinkComm : public Comm {
 public:
  explicit LinkComm(std::unique_ptr<Link> link);
  ~LinkComm() override;

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  Ticket AllGather(at::Tensor full) override;
  Ticket ReduceScatter(at::Tensor full, at::Tensor shard) override;
  Ticket AllToAll(at::Tensor in, at::Tensor out) override;
  Ticket AllReduce(at::Tensor tensor) override;
  Ticket Broadcast(at::Tensor tensor, int root) override;
  std::vector<std::vector<double>> AllGatherScalars(const std::vector<double>& mine) override;
  std::vector<std::vector<uint64_t>> AllGatherWords(const std::vector<uint64_t>& mine) override;
  void Abort() override { link_->Abort(); }
  int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  class Exchange;
  class LinkOperation;

  uint32_t NextTag() { return next_tag_++ & 0x7fffffffu; }
  // A staging tensor of at least `elements`, kept for reuse when returned.
  at::Tensor TakeStaging(int64_t elements, const at::Tensor& like);
  void ReturnStaging(at::Tensor staging);
  // Sends every part of `parts` to its rank and receives into `staging`, by sender; own entries are
  // left out.
  std::unique_ptr<Exchange> ExchangeParts(const std::vector<at::Tensor>& parts,
                                          const std::vector<at::Tensor>& into, uint32_t tag);
  // Receives part j of `parts` from rank j and sends our own to all.
  std::unique_ptr<Exchange> GatherParts(const std::vector<at::Tensor>& parts, uint32_t tag);
  at::Tensor GatherHost(const at::Tensor& mine);

  std::unique_ptr<Link> link_;
  uint32_t next_tag_ = 0;
  std::atomic<int64_t> bytes_sent_ = 0;
  std::vector<at::Tensor> free_staging_;
};

}  // namespace fedshard::collective
