#include "tests/gpu/stream_comm.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>

#include <functional>

#include "worker/collective/tree_sum.h"

namespace fedshard::gpu {

using collective::Comm;
using collective::CommError;
using collective::Ticket;

class StreamOperation : public Ticket::Operation {
 public:
  explicit StreamOperation(std::shared_ptr<at::cuda::CUDAEvent> done) : done_(std::move(done)) {}
  void Finish() override { done_->block(at::cuda::getCurrentCUDAStream()); }

 private:
  const std::shared_ptr<at::cuda::CUDAEvent> done_;
};

class StreamComm : public Comm {
 public:
  StreamComm(StreamWorld& world, int rank)
      : world_(world),
        rank_(rank),
        host_(world.host_.Connect(rank)),
        stream_(at::cuda::getStreamFromPool()) {}

  int rank() const override { return rank_; }
  int size() const override { return world_.ranks_; }

  Ticket AllGather(at::Tensor full) override {
    const int64_t part = full.numel() / size();
    return Run(full, [&] {
      for (int i = 0; i < size(); ++i) {
        if (i != rank_) full.narrow(0, i * part, part).copy_(Peer(i).narrow(0, i * part, part));
      }
      return std::function<void()>();
    });
  }
  Ticket ReduceScatter(at::Tensor full, at::Tensor shard) override {
    return Run(full, [&] {
      at::Tensor sum = SumOfPart(shard.numel(), rank_ * shard.numel());
      return [shard, sum]() mutable { shard.copy_(sum); };
    });
  }
  Ticket AllToAll(at::Tensor in, at::Tensor out) override {
    const int64_t part = in.numel() / size();
    return Run(in, [&] {
      for (int i = 0; i < size(); ++i) {
        out.narrow(0, i * part, part).copy_(Peer(i).narrow(0, rank_ * part, part));
      }
      return std::function<void()>();
    });
  }
  Ticket AllReduce(at::Tensor tensor) override {
    return Run(tensor, [&] {
      at::Tensor sum = SumOfPart(tensor.numel(), 0);
      return [tensor, sum]() mutable { tensor.copy_(sum); };
    });
  }
  Ticket Broadcast(at::Tensor tensor, int root) override {
    return Run(tensor, [&] {
      if (rank_ != root) tensor.copy_(Peer(root));
      return std::function<void()>();
    });
  }
  std::vector<std::vector<double>> AllGatherScalars(const std::vector<double>& mine) override {
    return host_->AllGatherScalars(mine);
  }
  std::vector<std::vector<uint64_t>> AllGatherWords(const std::vector<uint64_t>& mine) override {
    return host_->AllGatherWords(mine);
  }
  void Abort() override { host_->Abort(); }
  int64_t bytes_sent() const override { return 0; }

 private:
  const at::Tensor& Peer(int rank) const { return world_.shown_[rank].tensor; }

  // In tree order, in memory of this Comm's stream.
  at::Tensor SumOfPart(int64_t size, int64_t begin) const {
    std::vector<at::Tensor> pieces;
    for (int i = 0; i < world_.ranks_; ++i) {
      pieces.push_back(Peer(i).narrow(0, begin, size).clone());
    }
    at::Tensor sum = at::empty_like(pieces[0]);
    collective::TreeSum(std::move(pieces), 0, sum);
    return sum;
  }

  // read(): enqueues what reads the peers' tensors; returns what may be done only once all peers
  // have read (or nothing).
  template <typename Read>
  Ticket Run(const at::Tensor& tensor, Read read) {
    Delay();  // The tensor is ready late.
    ready_.record(at::cuda::getCurrentCUDAStream());
    world_.shown_[rank_] = {tensor, &ready_, &copied_};
    world_.Meet();
    auto done = std::make_shared<at::cuda::CUDAEvent>();
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      for (const auto& peer : world_.shown_) peer.ready->block(stream_);
      Delay();  // The transfer begins late.
      const std::function<void()> finish = read();
      copied_.record(stream_);
      world_.Meet();
      for (const auto& peer : world_.shown_) peer.copied->block(stream_);
      if (finish) finish();
      Delay();  // And is done late.
      done->record(stream_);
    }
    return Ticket(std::make_unique<StreamOperation>(std::move(done)));
  }
  void Delay() const {
    if (world_.delay_ > 0) at::cuda::sleep(world_.delay_);
  }

  StreamWorld& world_;
  const int rank_;
  std::unique_ptr<Comm> host_;
  const at::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent ready_, copied_;
};

StreamWorld::StreamWorld(int ranks, int64_t delay)
    : ranks_(ranks), delay_(delay), host_(ranks), shown_(ranks) {}

std::unique_ptr<Comm> StreamWorld::Connect(int rank) {
  return std::make_unique<StreamComm>(*this, rank);
}

void StreamWorld::Meet() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  MutexLock lock(mu_);
  const int64_t meeting = meetings_;
  if (++arrived_ == ranks_) {
    arrived_ = 0;
    ++meetings_;
    changed_.NotifyAll();
    return;
  }
  while (meetings_ == meeting) {
    if (std::chrono::steady_clock::now() >= deadline) throw CommError("a rank did not come");
    changed_.WaitFor(mu_, std::chrono::milliseconds(100));
  }
}

}  // namespace fedshard::gpu
