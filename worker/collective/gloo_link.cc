#include "worker/collective/gloo_link.h"

#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "worker/collective/batch_threads.h"
#include "worker/collective/comm.h"

namespace fedshard::collective {
namespace {

// Transfers under way, and whether the group is aborted: one lock, so that no transfer can slip in
// behind an abort.
class PendingWorks {
 public:
  // Starts a transfer unless aborted.
  template <typename StartFn>
  c10::intrusive_ptr<c10d::Work> Start(StartFn start) {
    MutexLock lock(mu_);
    if (aborted_) throw CommError("collective aborted");
    c10::intrusive_ptr<c10d::Work> work = start();
    works_.insert(work.get());
    return work;
  }
  void Finished(c10d::Work* work) {
    MutexLock lock(mu_);
    works_.erase(work);
  }
  void Abort() {
    MutexLock lock(mu_);
    aborted_ = true;
    for (c10d::Work* work : works_) work->abort();
  }
  bool aborted() {
    MutexLock lock(mu_);
    return aborted_;
  }

 private:
  Mutex mu_;
  bool aborted_ GUARDED_BY(mu_) = false;
  std::set<c10d::Work*> works_ GUARDED_BY(mu_);
};

class GlooTransfer : public Transfer {
 public:
  GlooTransfer(PendingWorks& pending, c10::intrusive_ptr<c10d::Work> work, std::string what)
      : pending_(pending), work_(std::move(work)), what_(std::move(what)) {}
  ~GlooTransfer() override {
    if (work_) pending_.Finished(work_.get());
  }

  void Wait() override {
    bool completed = false;
    std::string error = "aborted";
    try {
      completed = work_->wait();  // False after abort(); throws on a lost peer or the timeout.
    } catch (const std::exception& e) {
      error = e.what();
    }
    pending_.Finished(work_.get());
    work_.reset();
    if (!completed)
      throw CommError(what_ + (pending_.aborted() ? ": collective aborted" : ": " + error));
  }

 private:
  PendingWorks& pending_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
};

class GlooLink : public Link {
 public:
  GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  std::unique_ptr<Transfer> Send(at::Tensor tensor, int to, uint32_t tag) override {
    return Started("send to peer ", to, [&] {
      std::vector<at::Tensor> tensors = {tensor};
      return group_->send(tensors, to, static_cast<int>(tag));
    });
  }
  std::unique_ptr<Transfer> Receive(at::Tensor tensor, int from, uint32_t tag) override {
    return Started("receive from peer ", from, [&] {
      std::vector<at::Tensor> tensors = {tensor};
      return group_->recv(tensors, from, static_cast<int>(tag));
    });
  }
  void Abort() override { pending_.Abort(); }

 private:
  template <typename StartFn>
  std::unique_ptr<Transfer> Started(const char* what, int peer, StartFn start) {
    std::string text = what + std::to_string(peer);
    try {
      return std::make_unique<GlooTransfer>(pending_, pending_.Start(start), text);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& e) {  // Gloo's own type; the pair is closed already.
      throw CommError(text + ": " + e.what());
    }
  }

  PendingWorks pending_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Link> ConnectGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  const std::string& address, std::chrono::milliseconds timeout) {
  const BatchThreads batch;
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    // The address is the one the node advertises: never what this host's name happens to resolve
    // to.
    options->devices = {
        c10d::ProcessGroupGloo::createDeviceForHostname(address, /*lazyInit=*/false)};
    options->threads = 1;  // For collectives of Gloo's own, which are not used.
    return std::make_unique<GlooLink>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options)));
  } catch (const std::exception& e) {
    throw CommError("connecting rank " + std::to_string(rank) + " of " + std::to_string(size) +
                    " at " + address + ": " + e.what());
  }
}

}  // namespace fedshard::collective
