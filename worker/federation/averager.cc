#include "worker/federation/averager.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "worker/collective/hash.h"

namespace fedshard::federation {
namespace {

std::vector<at::Tensor> ZerosLike(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> zeros;
  for (const at::Tensor& tensor : tensors) zeros.push_back(at::zeros_like(tensor));
  return zeros;
}

// Weights are rounded to float once, so that every backend multiplies by the same number.
at::Tensor Scale(double weight, const at::Tensor& like) {
  return at::scalar_tensor(static_cast<float>(weight), like.options().dtype(at::kFloat));
}

}  // namespace

at::Tensor Averager::Chunk::Of(const std::vector<at::Tensor>& tensors) const {
  return tensors[unit].narrow(0, first, count);
}

Averager::Averager(std::vector<at::Tensor>& shards, collective::Comm& federation,
                   const AveragerOptions& options)
    : shards_(shards), federation_(federation), outer_(options.outer, shards) {
  const int64_t elements =
      std::max<int64_t>(1, options.chunk_bytes / static_cast<int64_t>(sizeof(float)));
  for (size_t unit = 0; unit < shards.size(); ++unit) {
    for (int64_t first = 0; first < shards[unit].numel(); first += elements) {
      chunks_.push_back({unit, first, std::min(elements, shards[unit].numel() - first)});
    }
  }
  staged_ = ZerosLike(shards);
  // A group alone sends nothing, so nothing need be rounded.
  if (options.compression != Compression::kNone && federation.size() > 1) {
    codec_.emplace(options.compression);
    residual_ = ZerosLike(shards);
  }
  if (compresses() || outer_.active()) base_ = ZerosLike(shards);
  Restart();
}

void Averager::Restart() {
  for (size_t unit = 0; unit < base_.size(); ++unit) base_[unit].copy_(shards_[unit]);
}

Averager::~Averager() { Join(); }

void Averager::Join() {
  if (thread_.joinable()) thread_.join();
}

void Averager::Begin(double weight) {
  Join();
  Abort();
  if (copy_.empty()) copy_ = ZerosLike(shards_);
  for (size_t unit = 0; unit < shards_.size(); ++unit) copy_[unit].copy_(shards_[unit]);
  overlapped_ = true;
  begun_error_ = nullptr;
  weight_ = weight;
  const int threads = at::get_num_threads();  // Each thread has a number of its own.
  thread_ = std::thread([this, weight, threads] {
    at::set_num_threads(threads);
    try {
      begun_hash_ = Compute(weight);
    } catch (...) {
      begun_error_ = std::current_exception();
    }
  });
}

uint64_t Averager::Average(double weight) {
  Join();
  if (!overlapped_ || weight != weight_) {
    Abort();
    return Compute(weight);
  }
  if (begun_error_) std::rethrow_exception(std::exchange(begun_error_, nullptr));
  return begun_hash_;
}

uint64_t Averager::Compute(double weight) {
  weight_ = weight;
  lost_.clear();
  uint64_t hash = 0;
  for (const Chunk& chunk : chunks_) {
    at::Tensor mean = chunk.Of(staged_);
    if (compresses()) {
      ExchangeChanges(chunk);
    } else {
      at::mul_out(mean, chunk.Of(source()), Scale(weight, mean));
      federation_.AllReduce(mean).Wait();
    }
    const at::Tensor host = Result(chunk, /*keep=*/false).cpu();
    hash = collective::Fingerprint64(host.const_data_ptr(), host.nbytes(), hash);
  }
  pending_ = true;
  return hash;
}

void Averager::Commit() {
  Join();
  TORCH_CHECK(pending_, "Averager::Commit without Average");
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    const at::Tensor result = Result(chunk, /*keep=*/true);
    if (compresses()) KeepResidual(chunk, lost_[i]);
    if (overlapped_) {
      chunk.Of(shards_).add_(result - chunk.Of(copy_));
    } else {
      chunk.Of(shards_).copy_(result);
    }
    if (!base_.empty()) chunk.Of(base_).copy_(result);
  }
  Abort();
}

void Averager::Abort() {
  Join();
  pending_ = false;
  overlapped_ = false;
  lost_.clear();
}

at::Tensor Averager::Result(const Chunk& chunk, bool keep) {
  const at::Tensor mean = chunk.Of(staged_);
  if (!outer_.active()) return mean;
  return outer_.Apply(chunk.unit, chunk.first, chunk.Of(base_), mean, keep);
}

int64_t Averager::PartOf(const Chunk& chunk) const {
  const int64_t blocks = federation_.size() * WireCodec::kBlock;
  return (chunk.count + blocks - 1) / blocks * WireCodec::kBlock;
}

at::Tensor Averager::OwedChange(const Chunk& chunk) const {
  const at::Tensor shard = chunk.Of(source());
  at::Tensor change = at::zeros({federation_.size() * PartOf(chunk)}, shard.options());
  at::Tensor used = change.narrow(0, 0, chunk.count);
  at::sub_out(used, shard, chunk.Of(base_));
  used.mul_(Scale(weight_, used)).add_(chunk.Of(residual_));
  return change;
}

void Averager::ExchangeChanges(const Chunk& chunk) {
  const int64_t groups = federation_.size();
  const int64_t own = federation_.rank();
  const int64_t part = PartOf(chunk);
  const int64_t bytes = codec_->Bytes(part);
  at::Tensor values = OwedChange(chunk);
  at::Tensor out = at::zeros({groups * bytes}, values.options().dtype(at::kByte));
  at::Tensor in = at::empty_like(out);
  const auto values_of = [&](int64_t g) { return values.narrow(0, g * part, part); };
  const auto bytes_of = [&](const at::Tensor& all, int64_t g) {
    return all.narrow(0, g * bytes, bytes);
  };
  for (int64_t g = 0; g < groups; ++g) {
    if (g != own) codec_->Encode(values_of(g), bytes_of(out, g));
  }
  federation_.AllToAll(out, in).Wait();

  // This rank's part: the sum in the order of groups, and what is lost by encoding it.
  at::Tensor sum = at::zeros({part}, values.options());
  at::Tensor decoded = at::empty_like(sum);
  for (int64_t g = 0; g < groups; ++g) {
    if (g != own) codec_->Decode(bytes_of(in, g), decoded);
    sum.add_(g == own ? values_of(own) : decoded);
  }
  codec_->Encode(sum, bytes_of(out, own));
  codec_->Decode(bytes_of(out, own), decoded);
  lost_.push_back(sum.sub_(decoded));

  federation_.AllGather(out).Wait();
  for (int64_t g = 0; g < groups; ++g) codec_->Decode(bytes_of(out, g), values_of(g));
  at::Tensor mean = chunk.Of(staged_);
  at::add_out(mean, chunk.Of(base_), values.narrow(0, 0, chunk.count));
}

void Averager::KeepResidual(const Chunk& chunk, const at::Tensor& lost) {
  const int64_t part = PartOf(chunk);
  at::Tensor owed = OwedChange(chunk);
  at::Tensor bytes = at::empty({codec_->Bytes(part)}, owed.options().dtype(at::kByte));
  at::Tensor decoded = at::empty({part}, owed.options());
  for (int64_t g = 0; g < federation_.size(); ++g) {
    at::Tensor values = owed.narrow(0, g * part, part);
    if (g == federation_.rank()) {
      values.copy_(lost);  // It came into the sum as it is; the second hop is this rank's to pay.
    } else {
      codec_->Encode(values, bytes);
      codec_->Decode(bytes, decoded);
      values.sub_(decoded);
    }
  }
  chunk.Of(residual_).copy_(owed.narrow(0, 0, chunk.count));
}

void Averager::AverageState(const std::vector<at::Tensor>& tensors, double weight) {
  for (const Chunk& chunk : chunks_) {
    at::Tensor part = chunk.Of(tensors);
    at::Tensor sum = part.to(at::kFloat);
    sum.mul_(Scale(weight, sum));
    federation_.AllReduce(sum).Wait();
    if (!sum.is_same(part)) part.copy_(sum);
  }
}

std::vector<AveragerState> Averager::State() {
  std::vector<AveragerState> state;
  if (!outer_.first_moments().empty()) {
    state.push_back({"outer_first_moment", true, outer_.first_moments()});
  }
  if (!outer_.second_moments().empty()) {
    state.push_back({"outer_second_moment", true, outer_.second_moments()});
  }
  if (compresses()) state.push_back({"residual", false, residual_});
  return state;
}

}  // namespace fedshard::federation
