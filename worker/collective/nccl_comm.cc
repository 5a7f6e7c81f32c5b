// Comm over NCCL: what the CUDA plugin offers the rest of this room. A federation group connects
// one communicator, which is split into those of the tiers. A shard tier has two, so that a
// reduce-scatter need not wait for the all-gather before it: operations of one communicator follow
// each other whatever their streams. They may run at the same time because one thread issues them
// in the same order on every rank, and NCCL is told to keep that order.
//
// Sums are NCCL's: the order is fixed for a given group size and algorithm, but is not the pairwise
// tree.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "worker/collective/nccl_channel.h"
#include "worker/collective/nccl_plugin.h"

namespace fedshard::collective {
namespace {

using c10d::ProcessGroupNCCL;

class NcclComm : public Comm {
 public:
  // reduce: where reductions go; null: to `gather` too.
  NcclComm(int rank, int size, int gpu, std::unique_ptr<NcclChannel> gather,
           std::unique_ptr<NcclChannel> reduce)
      : rank_(rank), size_(size), gpu_(gpu), gather_(std::move(gather)), own_(std::move(reduce)) {}
  ~NcclComm() override {
    own_.reset();
    gather_.reset();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Ticket AllGather(at::Tensor full) override {
    bytes_sent_ += (size_ - 1) * static_cast<int64_t>(full.nbytes()) / size_;
    return Gather(std::move(full));
  }

  Ticket ReduceScatter(at::Tensor full, at::Tensor shard) override {
    bytes_sent_ += (size_ - 1) * static_cast<int64_t>(shard.nbytes());
    return reduce().Issue("reduce-scatter", [&](ProcessGroupNCCL& group) {
      c10d::ReduceScatterOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      options.asyncOp = false;
      group._reduce_scatter_base(shard, full, options);
    });
  }

  Ticket AllToAll(at::Tensor in, at::Tensor out) override {
    bytes_sent_ += (size_ - 1) * static_cast<int64_t>(in.nbytes()) / size_;
    return reduce().Issue("all-to-all", [&](ProcessGroupNCCL& group) {
      std::vector<int64_t> equal;
      c10d::AllToAllOptions options;
      options.asyncOp = false;
      group.alltoall_base(out, in, equal, equal, options);
    });
  }

  Ticket AllReduce(at::Tensor tensor) override {
    bytes_sent_ += 2 * (size_ - 1) * static_cast<int64_t>(tensor.nbytes()) / size_;
    return reduce().Issue("all-reduce", [&](ProcessGroupNCCL& group) {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      options.asyncOp = false;
      group.allreduce(tensors, options);
    });
  }

  Ticket Broadcast(at::Tensor tensor, int root) override {
    if (rank_ == root) bytes_sent_ += (size_ - 1) * static_cast<int64_t>(tensor.nbytes());
    return gather_->Issue("broadcast", [&](ProcessGroupNCCL& group) {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.asyncOp = false;
      group.broadcast(tensors, options);
    });
  }

  std::vector<std::vector<double>> AllGatherScalars(const std::vector<double>& mine) override {
    return GatherHost(mine);
  }
  std::vector<std::vector<uint64_t>> AllGatherWords(const std::vector<uint64_t>& mine) override {
    return GatherHost(mine);
  }

  void Abort() override {
    if (own_) own_->Abort();
    gather_->Abort();
  }
  int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  NcclChannel& reduce() { return own_ ? *own_ : *gather_; }

  Ticket Gather(at::Tensor full) {
    return gather_->Issue("all-gather", [&](ProcessGroupNCCL& group) {
      const int64_t part = full.numel() / size_;
      at::Tensor mine = full.narrow(0, rank_ * part, part);
      c10d::AllgatherOptions options;
      options.asyncOp = false;
      group._allgather_base(full, mine, options);
    });
  }

  // Through buffers that are kept: pinned on the host, and on the GPU.
  template <typename T>
  std::vector<std::vector<T>> GatherHost(const std::vector<T>& mine) {
    const auto bytes = static_cast<int64_t>(mine.size() * sizeof(T));
    if (bytes == 0) {
      gather_->ThrowIfAborted();
      return std::vector<std::vector<T>>(size_);
    }
    if (!host_.defined() || host_.numel() < size_ * bytes) {
      host_ = at::empty({size_ * bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
      device_ =
          at::empty({size_ * bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA, gpu_));
    }
    const at::Tensor host = host_.narrow(0, 0, size_ * bytes);
    const at::Tensor device = device_.narrow(0, 0, size_ * bytes);
    auto* values = host.mutable_data_ptr<uint8_t>();
    memcpy(values + rank_ * bytes, mine.data(), bytes);
    device.narrow(0, rank_ * bytes, bytes).copy_(host.narrow(0, rank_ * bytes, bytes));
    Gather(device).Wait();
    host.copy_(device);  // The CPU waits here; the watch ends the process if that takes too long.
    gather_->ThrowIfAborted();
    std::vector<std::vector<T>> result(size_, std::vector<T>(mine.size()));
    for (int i = 0; i < size_; ++i) memcpy(result[i].data(), values + i * bytes, bytes);
    return result;
  }

  const int rank_;
  const int size_;
  const int gpu_;
  std::unique_ptr<NcclChannel> gather_;
  std::unique_ptr<NcclChannel> own_;  // Of reductions.
  at::Tensor host_, device_;
  std::atomic<int64_t> bytes_sent_ = 0;
};

// Connects communicators of one group, in the same order on all its ranks.
class Connector {
 public:
  explicit Connector(const NcclGroup& group)
      : group_(group),
        whole_(Connect("group", nullptr, 0, group.replica * group.shards + group.shard,
                       group.shards * group.replicas)) {}

  // `color`: the index of this rank's communicator among those that the group is split into.
  std::unique_ptr<NcclChannel> Split(const std::string& name, int color, int rank, int size) {
    return std::make_unique<NcclChannel>(name, Connect(name, whole_, color, rank, size), group_.gpu,
                                         group_.timeout);
  }

 private:
  NcclChannel::Group Connect(const std::string& name, const NcclChannel::Group& parent, int color,
                             int rank, int size) {
    auto options = ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    // Our own watch is first; this is for what it cannot see.
    options->timeout = 2 * group_.timeout;
    options->group_name = name + "/" + std::to_string(color);
    if (parent) {
      options->split_from = parent;
      options->split_color = color;
    }
    auto store = c10::make_intrusive<c10d::PrefixStore>(options->group_name, group_.store);
    auto result =
        c10::make_intrusive<ProcessGroupNCCL>(std::move(store), rank, size, std::move(options));
    // At once: a communicator can only be split when it is there, and a peer that is missing shows
    // here, where it can still be an exception.
    result->eagerConnectSingleDevice(
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(group_.gpu)));
    return result;
  }

  const NcclGroup& group_;
  const NcclChannel::Group whole_;  // Lives on in the options of its parts.
};

// What NCCL and LibTorch read from the environment when their first communicator is made. The
// user's own settings win.
void SetEnvironment() {
  // Two communicators of one GPU may run at once: in the order in which they were issued.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  // LibTorch would end the process by std::terminate; NcclChannel does it with an exit code.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
}

NcclTiers ConnectTiers(const NcclGroup& group) {
  Connector connector(group);
  NcclTiers tiers;
  std::unique_ptr<NcclChannel> gather, reduce, replica;
  if (group.shards > 1 || group.always) {
    gather = connector.Split("gather", group.replica, group.shard, group.shards);
    reduce = connector.Split("reduce", group.replica, group.shard, group.shards);
    tiers.shard = std::make_unique<NcclComm>(group.shard, group.shards, group.gpu,
                                             std::move(gather), std::move(reduce));
  }
  if (group.replicas > 1 || group.always) {
    replica = connector.Split("replicate", group.shard, group.replica, group.replicas);
    tiers.replica = std::make_unique<NcclComm>(group.replica, group.replicas, group.gpu,
                                               std::move(replica), nullptr);
  }
  return tiers;
}

}  // namespace
}  // namespace fedshard::collective

extern "C" void fedshard_require_gpu(int gpu) {
  using fedshard::collective::CommError;
  if (!at::cuda::is_available()) throw CommError("device cuda: no GPU or no driver on this node");
  if (gpu < 0 || gpu >= at::cuda::device_count()) {
    throw CommError("device cuda: GPU " + std::to_string(gpu) + " of " +
                    std::to_string(at::cuda::device_count()) + " does not exist");
  }
  // Otherwise pinned memory, for one, would make a context on GPU 0 for every rank of the node.
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
}

extern "C" void fedshard_connect_nccl(const fedshard::collective::NcclGroup& group,
                                      fedshard::collective::NcclTiers& tiers) {
  using fedshard::collective::CommError;
  fedshard_require_gpu(group.gpu);
  try {
    fedshard::collective::SetEnvironment();
    tiers = fedshard::collective::ConnectTiers(group);
  } catch (const c10::Error& e) {
    throw CommError(std::string("NCCL: ") + e.what_without_backtrace());
  }
}
