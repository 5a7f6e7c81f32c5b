#include "worker/federation/averager.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "worker/collective/hash.h"

namespace fedshard::federation {

Averager::Averager(std::vector<at::Tensor>& shards, collective::Comm& federation,
                   int64_t chunk_bytes)
    : shards_(shards), federation_(federation) {
  chunk_elements_ = std::max<int64_t>(1, chunk_bytes / static_cast<int64_t>(sizeof(float)));
  for (const at::Tensor& shard : shards_) staged_.push_back(at::zeros_like(shard));
}

uint64_t Averager::Average(double weight) {
  // Weights are rounded to float once, here, so that every backend multiplies by the same number.
  const float scale = static_cast<float>(weight);
  uint64_t hash = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    at::mul_out(staged_[i], shards_[i], at::scalar_tensor(scale, shards_[i].options()));
    const int64_t elements = staged_[i].numel();
    for (int64_t first = 0; first < elements; first += chunk_elements_) {
      federation_
          .AllReduce(staged_[i].narrow(0, first, std::min(chunk_elements_, elements - first)))
          .Wait();
    }
    const at::Tensor host = staged_[i].cpu();
    hash = collective::Fingerprint64(host.const_data_ptr(), host.nbytes(), hash);
  }
  pending_ = true;
  return hash;
}

void Averager::Commit() {
  TORCH_CHECK(pending_, "Averager::Commit without Average");
  for (size_t i = 0; i < shards_.size(); ++i) shards_[i].copy_(staged_[i]);
  pending_ = false;
}

void Averager::Abort() { pending_ = false; }

}  // namespace fedshard::federation
