#include "worker/collective/fake_comm.h"

#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/mutex.h"
#include "worker/collective/link_comm.h"
#include "worker/collective/self_comm.h"

namespace fedshard::collective {

struct FakeWorld::Shared {
  using Key = std::tuple<int, int, uint32_t>;  // From, to, tag.
  int size = 0;
  std::chrono::milliseconds timeout;
  Mutex mu;
  CondVar changed;
  std::map<Key, std::deque<std::vector<char>>> messages;
  std::set<int> aborted;
  std::set<int> dead;
  std::map<std::pair<int, uint32_t>, Fault> faults;
};

// The far end of a rank's messages.
class FakeLink : public Link {
 public:
  using Shared = FakeWorld::Shared;
  FakeLink(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return shared_->size; }

  std::unique_ptr<Transfer> Send(at::Tensor tensor, int to, uint32_t tag) override {
    MutexLock lock(shared_->mu);
    CheckFault(tag);
    std::vector<char> bytes(tensor.nbytes());
    memcpy(bytes.data(), tensor.const_data_ptr(), bytes.size());
    shared_->messages[{rank_, to, tag}].push_back(std::move(bytes));
    shared_->changed.NotifyAll();
    return std::make_unique<Sent>();
  }

  std::unique_ptr<Transfer> Receive(at::Tensor tensor, int from, uint32_t tag) override {
    MutexLock lock(shared_->mu);
    CheckFault(tag);
    return std::make_unique<Receiving>(*this, std::move(tensor), Shared::Key{from, rank_, tag});
  }

  void Abort() override {
    MutexLock lock(shared_->mu);
    shared_->aborted.insert(rank_);
    shared_->changed.NotifyAll();
  }

 private:
  class Sent : public Transfer {
    void Wait() override {}
  };

  class Receiving : public Transfer {
   public:
    Receiving(FakeLink& link, at::Tensor tensor, Shared::Key key)
        : link_(link), tensor_(std::move(tensor)), key_(key) {}
    void Wait() override { link_.Take(key_, tensor_); }

   private:
    FakeLink& link_;
    at::Tensor tensor_;
    Shared::Key key_;
  };

  void CheckFault(uint32_t tag) REQUIRES(shared_->mu) {
    ThrowIfAborted();
    const auto fault = shared_->faults.find({rank_, tag});
    if (fault == shared_->faults.end()) return;
    if (fault->second == Fault::kHang) {
      while (shared_->aborted.count(rank_) == 0) shared_->changed.Wait(shared_->mu);
      ThrowIfAborted();
    }
    shared_->dead.insert(rank_);
    shared_->changed.NotifyAll();
    throw CommError("injected failure of rank " + std::to_string(rank_));
  }

  void ThrowIfAborted() REQUIRES(shared_->mu) {
    if (shared_->aborted.count(rank_) != 0) throw CommError("collective aborted");
  }

  void Take(const Shared::Key& key, at::Tensor& tensor) {
    MutexLock lock(shared_->mu);
    const auto deadline = std::chrono::steady_clock::now() + shared_->timeout;
    while (true) {
      ThrowIfAborted();
      const auto found = shared_->messages.find(key);
      if (found != shared_->messages.end()) {
        const std::vector<char>& bytes = found->second.front();
        if (bytes.size() != tensor.nbytes()) throw CommError("message of another size");
        memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
        found->second.pop_front();
        if (found->second.empty()) shared_->messages.erase(found);
        return;
      }
      if (shared_->dead.count(std::get<0>(key)) != 0) throw CommError("peer is dead");
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left.count() <= 0) throw CommError("timed out");
      shared_->changed.WaitFor(shared_->mu,
                               std::chrono::duration_cast<std::chrono::microseconds>(left));
    }
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
};

FakeWorld::FakeWorld(int size, std::chrono::milliseconds timeout)
    : shared_(std::make_shared<Shared>()) {
  shared_->size = size;
  shared_->timeout = timeout;
}

FakeWorld::~FakeWorld() = default;

std::unique_ptr<Comm> FakeWorld::Connect(int rank) {
  if (shared_->size == 1) return std::make_unique<SelfComm>();
  return std::make_unique<LinkComm>(std::make_unique<FakeLink>(shared_, rank));
}

void FakeWorld::SetFault(int rank, uint32_t operation, Fault fault) {
  MutexLock lock(shared_->mu);
  shared_->faults[{rank, operation}] = fault;
}

FakeMesh::FakeMesh(const Mesh& mesh) : mesh_(mesh) {
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const MeshCoordinates at = mesh.CoordinatesOf(rank);
    shard_.try_emplace({at.group, at.replica}, mesh.shards);
    replica_.try_emplace({at.group, at.shard}, mesh.replicas);
    federation_.try_emplace({at.replica, at.shard}, mesh.groups);
  }
}

MeshComms FakeMesh::Connect(int rank) {
  const MeshCoordinates at = mesh_.CoordinatesOf(rank);
  return {shard_.at({at.group, at.replica}).Connect(at.shard),
          replica_.at({at.group, at.shard}).Connect(at.replica),
          federation_.at({at.replica, at.shard}).Connect(at.group)};
}

}  // namespace fedshard::collective
