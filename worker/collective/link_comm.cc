#include "worker/collective/link_comm.h"

#include <ATen/Functions.h>

#include <cstring>
#include <utility>

#include "worker/collective/tree_sum.h"

namespace fedshard::collective {
namespace {

std::vector<at::Tensor> EqualParts(const at::Tensor& full, int parts) {
  const int64_t part = full.numel() / parts;
  TORCH_CHECK(full.dim() == 1 && full.is_contiguous() && full.numel() == part * parts,
              "collective: needs a contiguous 1-D tensor of ", parts, " equal parts, got ",
              full.sizes());
  std::vector<at::Tensor> views;
  for (int i = 0; i < parts; ++i) views.push_back(full.narrow(0, i * part, part));
  return views;
}

// Boundaries [i*n/parts, (i+1)*n/parts): any length, parts differ by at most one element.
std::vector<at::Tensor> NearlyEqualParts(const at::Tensor& tensor, int parts) {
  std::vector<at::Tensor> views;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t first = i * tensor.numel() / parts;
    views.push_back(tensor.narrow(0, first, (i + 1) * tensor.numel() / parts - first));
  }
  return views;
}

}  // namespace

// Messages of one phase of an operation. Destroying it waits for all of them.
class LinkComm::Exchange {
 public:
  explicit Exchange(Link& link) : link_(link) {}
  ~Exchange() {
    try {
      Wait();
    } catch (const std::exception&) {
      // Already unwinding from it.
    }
  }
  void Add(std::unique_ptr<Transfer> transfer) { transfers_.push_back(std::move(transfer)); }

  // After the first error the link is aborted, so that the other transfers end too before their
  // tensors go away.
  void Wait() {
    std::exception_ptr error;
    for (const auto& transfer : std::exchange(transfers_, {})) {
      try {
        transfer->Wait();
      } catch (const std::exception&) {
        if (!error) error = std::current_exception();
        link_.Abort();
      }
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  Link& link_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

// A ticket's operation: wait for the messages under way, then whatever follows.
class LinkComm::LinkOperation : public Ticket::Operation {
 public:
  LinkOperation(std::unique_ptr<Exchange> exchange, std::function<void()> then)
      : exchange_(std::move(exchange)), then_(std::move(then)) {}
  void Finish() override {
    exchange_->Wait();
    if (then_) then_();
  }

 private:
  std::unique_ptr<Exchange> exchange_;
  std::function<void()> then_;
};

LinkComm::LinkComm(std::unique_ptr<Link> link) : link_(std::move(link)) {}
LinkComm::~LinkComm() = default;

at::Tensor LinkComm::TakeStaging(int64_t elements, const at::Tensor& like) {
  for (size_t i = 0; i < free_staging_.size(); ++i) {
    if (free_staging_[i].numel() >= elements && free_staging_[i].dtype() == like.dtype()) {
      at::Tensor found = std::move(free_staging_[i]);
      free_staging_.erase(free_staging_.begin() + static_cast<std::ptrdiff_t>(i));
      return found;
    }
  }
  // Written once now: fresh pages cost more than the copy they receive.
  return at::zeros({elements}, like.options());
}

void LinkComm::ReturnStaging(at::Tensor staging) { free_staging_.push_back(std::move(staging)); }

std::unique_ptr<LinkComm::Exchange> LinkComm::ExchangeParts(const std::vector<at::Tensor>& parts,
                                                            const std::vector<at::Tensor>& into,
                                                            uint32_t tag) {
  auto exchange = std::make_unique<Exchange>(*link_);
  const int n = size();
  for (int d = 1; d < n; ++d) {
    const int from = (rank() - d + n) % n;
    if (into[from].numel() > 0) exchange->Add(link_->Receive(into[from], from, tag));
  }
  for (int d = 1; d < n; ++d) {
    const int to = (rank() + d) % n;
    if (parts[to].numel() == 0) continue;
    exchange->Add(link_->Send(parts[to], to, tag));
    bytes_sent_ += static_cast<int64_t>(parts[to].nbytes());
  }
  return exchange;
}

std::unique_ptr<LinkComm::Exchange> LinkComm::GatherParts(const std::vector<at::Tensor>& parts,
                                                          uint32_t tag) {
  return ExchangeParts(std::vector<at::Tensor>(size(), parts[rank()]), parts, tag);
}

Ticket LinkComm::AllGather(at::Tensor full) {
  return Ticket(
      std::make_unique<LinkOperation>(GatherParts(EqualParts(full, size()), NextTag()), nullptr));
}

Ticket LinkComm::ReduceScatter(at::Tensor full, at::Tensor shard) {
  std::vector<at::Tensor> parts = EqualParts(full, size());
  const int64_t part = parts[0].numel();
  TORCH_CHECK(shard.numel() == part, "reduce-scatter: shard has ", shard.numel(), " elements, not ",
              part);
  at::Tensor staging = TakeStaging(part * (size() - 1), full);
  std::vector<at::Tensor> pieces;
  for (int i = 0, used = 0; i < size(); ++i) {
    pieces.push_back(i == rank() ? parts[i] : staging.narrow(0, part * used++, part));
  }
  auto exchange = ExchangeParts(parts, pieces, NextTag());
  return Ticket(std::make_unique<LinkOperation>(
      std::move(exchange), [this, pieces = std::move(pieces), shard, staging]() mutable {
        TreeSum(std::move(pieces), rank(), shard);
        ReturnStaging(std::move(staging));
      }));
}

Ticket LinkComm::AllToAll(at::Tensor in, at::Tensor out) {
  const std::vector<at::Tensor> parts = EqualParts(in, size());
  const std::vector<at::Tensor> into = EqualParts(out, size());
  TORCH_CHECK(in.nbytes() == out.nbytes(), "all-to-all: in and out differ in size");
  at::Tensor own = into[rank()];
  own.copy_(parts[rank()]);
  return Ticket(std::make_unique<LinkOperation>(ExchangeParts(parts, into, NextTag()), nullptr));
}

Ticket LinkComm::AllReduce(at::Tensor tensor) {
  std::vector<at::Tensor> parts = NearlyEqualParts(tensor, size());
  const int64_t mine = parts[rank()].numel();
  at::Tensor staging = TakeStaging(mine * (size() - 1), tensor);
  std::vector<at::Tensor> pieces;
  for (int i = 0, used = 0; i < size(); ++i) {
    pieces.push_back(i == rank() ? parts[i] : staging.narrow(0, mine * used++, mine));
  }
  auto exchange = ExchangeParts(parts, pieces, NextTag());
  const uint32_t gather_tag = NextTag();
  return Ticket(std::make_unique<LinkOperation>(
      std::move(exchange),
      [this, parts = std::move(parts), pieces = std::move(pieces), staging, gather_tag]() mutable {
        TreeSum(std::move(pieces), rank(), parts[rank()]);
        ReturnStaging(std::move(staging));
        GatherParts(parts, gather_tag)->Wait();
      }));
}

Ticket LinkComm::Broadcast(at::Tensor tensor, int root) {
  auto exchange = std::make_unique<Exchange>(*link_);
  const uint32_t tag = NextTag();
  if (rank() != root) {
    exchange->Add(link_->Receive(tensor, root, tag));
  } else {
    for (int d = 1; d < size(); ++d) {
      exchange->Add(link_->Send(tensor, (root + d) % size(), tag));
      bytes_sent_ += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return Ticket(std::make_unique<LinkOperation>(std::move(exchange), nullptr));
}

at::Tensor LinkComm::GatherHost(const at::Tensor& mine) {
  at::Tensor all = at::zeros({size() * mine.numel()}, mine.options());
  std::vector<at::Tensor> parts = EqualParts(all, size());
  parts[rank()].copy_(mine);
  const int64_t before = bytes_sent_;
  if (mine.numel() > 0) GatherParts(parts, NextTag())->Wait();
  bytes_sent_ = before;  // Bookkeeping, not payload.
  return all;
}

template <typename T>
static std::vector<std::vector<T>> ByRank(const at::Tensor& all, int ranks) {
  std::vector<std::vector<T>> result(ranks, std::vector<T>(all.numel() / ranks));
  for (int i = 0; i < ranks; ++i) {
    if (!result[i].empty()) {
      memcpy(result[i].data(), static_cast<const T*>(all.const_data_ptr()) + i * result[i].size(),
             result[i].size() * sizeof(T));
    }
  }
  return result;
}

std::vector<std::vector<double>> LinkComm::AllGatherScalars(const std::vector<double>& mine) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(mine.size())}, at::kDouble);
  if (!mine.empty()) memcpy(tensor.mutable_data_ptr(), mine.data(), mine.size() * sizeof(double));
  return ByRank<double>(GatherHost(tensor), size());
}

std::vector<std::vector<uint64_t>> LinkComm::AllGatherWords(const std::vector<uint64_t>& mine) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  if (!mine.empty()) memcpy(tensor.mutable_data_ptr(), mine.data(), mine.size() * sizeof(uint64_t));
  return ByRank<uint64_t>(GatherHost(tensor), size());
}

}  // namespace fedshard::collective
