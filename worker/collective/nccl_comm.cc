// Comm over NCCL, the only file that includes CUDA headers. Every operation runs on this Comm's own
// stream, behind an event of the caller's current stream; Wait() makes the caller's current stream
// wait for it, never the CPU. asyncOp=false keeps ProcessGroupNCCL from adding streams and events
// of its own, and from holding on to tensors.
//
// Sums are NCCL's: the order is fixed for a given group size and algorithm, but is not the pairwise
// tree.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "worker/collective/nccl_plugin.h"

namespace fedshard::collective {
namespace {

class StreamOperation : public Ticket::Operation {
 public:
  StreamOperation(at::cuda::CUDAEvent done, c10::DeviceIndex gpu)
      : done_(std::move(done)), gpu_(gpu) {}
  void Finish() override { done_.block(at::cuda::getCurrentCUDAStream(gpu_)); }

 private:
  at::cuda::CUDAEvent done_;
  c10::DeviceIndex gpu_;
};

class NcclComm : public Comm {
 public:
  explicit NcclComm(const NcclGroup& group)
      : gpu_(static_cast<c10::DeviceIndex>(group.gpu)),
        stream_(at::cuda::getStreamFromPool(/*isHighPriority=*/true, gpu_)) {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = group.timeout;
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size,
                                                         std::move(options));
    group_->eagerConnectSingleDevice(at::Device(at::kCUDA, gpu_));
  }
  ~NcclComm() override { group_->shutdown(); }

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  Ticket AllGather(at::Tensor full) override {
    const int64_t part = full.numel() / size();
    bytes_sent_ += (size() - 1) * part * static_cast<int64_t>(full.element_size());
    return Issue([&] {
      at::Tensor mine = full.narrow(0, rank() * part, part);
      c10d::AllgatherOptions options;
      options.asyncOp = false;
      group_->_allgather_base(full, mine, options);
    });
  }

  Ticket ReduceScatter(at::Tensor full, at::Tensor shard) override {
    bytes_sent_ += (size() - 1) * static_cast<int64_t>(shard.nbytes());
    return Issue([&] {
      c10d::ReduceScatterOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      options.asyncOp = false;
      group_->_reduce_scatter_base(shard, full, options);
    });
  }

  Ticket AllReduce(at::Tensor tensor) override {
    bytes_sent_ += 2 * (size() - 1) * static_cast<int64_t>(tensor.nbytes()) / size();
    return Issue([&] {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      options.asyncOp = false;
      group_->allreduce(tensors, options);
    });
  }

  Ticket Broadcast(at::Tensor tensor, int root) override {
    if (rank() == root) bytes_sent_ += (size() - 1) * static_cast<int64_t>(tensor.nbytes());
    return Issue([&] {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.asyncOp = false;
      group_->broadcast(tensors, options);
    });
  }

  std::vector<std::vector<double>> AllGatherScalars(const std::vector<double>& mine) override {
    return GatherHost<double>(mine, at::kDouble);
  }
  std::vector<std::vector<uint64_t>> AllGatherWords(const std::vector<uint64_t>& mine) override {
    return GatherHost<uint64_t>(mine, at::kLong);
  }

  // NCCL's communicators of one process must go together, and an abort can itself hang: the process
  // has to exit afterwards, and its supervisor sees to it.
  void Abort() override { group_->abort(); }
  int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  Ticket Issue(const std::function<void()>& enqueue) {
    try {
      at::cuda::CUDAEvent ready, done;
      ready.record(at::cuda::getCurrentCUDAStream(gpu_));
      ready.block(stream_);
      {
        c10::cuda::CUDAStreamGuard guard(stream_);
        enqueue();
      }
      done.record(stream_);
      return Ticket(std::make_unique<StreamOperation>(std::move(done), gpu_));
    } catch (const c10::Error& e) {
      throw CommError(std::string("NCCL: ") + e.what_without_backtrace());
    }
  }

  template <typename T>
  std::vector<std::vector<T>> GatherHost(const std::vector<T>& mine, at::ScalarType type) {
    const int64_t count = static_cast<int64_t>(mine.size());
    at::Tensor host = at::empty({size() * count}, type);
    memcpy(static_cast<T*>(host.mutable_data_ptr()) + rank() * count, mine.data(),
           count * sizeof(T));
    at::Tensor device = host.to(at::Device(at::kCUDA, gpu_));
    const int64_t before = bytes_sent_;
    AllGather(device).Wait();
    bytes_sent_ = before;  // Bookkeeping, not payload.
    host.copy_(device);
    std::vector<std::vector<T>> result(size(), std::vector<T>(count));
    for (int i = 0; i < size(); ++i) {
      memcpy(result[i].data(), static_cast<const T*>(host.const_data_ptr()) + i * count,
             count * sizeof(T));
    }
    return result;
  }

  c10::DeviceIndex gpu_;
  at::cuda::CUDAStream stream_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  std::atomic<int64_t> bytes_sent_ = 0;
};

}  // namespace
}  // namespace fedshard::collective

extern "C" void fedshard_require_gpu(int gpu) {
  using fedshard::collective::CommError;
  if (!at::cuda::is_available()) throw CommError("device cuda: no GPU or no driver on this node");
  if (gpu < 0 || gpu >= at::cuda::device_count()) {
    throw CommError("device cuda: GPU " + std::to_string(gpu) + " of " +
                    std::to_string(at::cuda::device_count()) + " does not exist");
  }
}

extern "C" fedshard::collective::Comm* fedshard_make_nccl_comm(
    const fedshard::collective::NcclGroup& group) {
  using fedshard::collective::CommError;
  fedshard_require_gpu(group.gpu);
  try {
    return new fedshard::collective::NcclComm(group);
  } catch (const c10::Error& e) {
    throw CommError(std::string("NCCL: ") + e.what_without_backtrace());
  }
}
