#include "worker/engine/inference_engine.h"

#include <ATen/ATen.h>

#include "worker/engine/inference_pass.h"
#include "worker/engine/llama.h"
#include "worker/engine/math_backend.h"
#include "worker/engine/training_pass.h"
#include "worker/engine/unit_gatherer.h"

namespace fedshard::engine {
namespace {

at::TensorOptions FloatsOn(const InferenceOptions& options) {
  const at::Device device = options.cuda
                                ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(options.gpu))
                                : at::Device(at::kCPU);
  return at::TensorOptions().dtype(at::kFloat).device(device);
}

std::vector<at::Tensor> AllocateShards(const ModelLayout& layout, at::TensorOptions floats) {
  std::vector<at::Tensor> shards;
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    shards.push_back(at::zeros({layout.shard_size(unit)}, floats));
  }
  return shards;
}

}  // namespace

class InferenceEngine::Impl {
 public:
  Impl(const InferenceOptions& options, collective::Comm& shard)
      : options(options),
        layout(options.model, shard.size()),
        floats(FloatsOn(options)),
        shard_rank(shard.rank()),
        shards(AllocateShards(layout, floats)),
        logits(at::empty({options.loss_chunk_tokens, options.model.vocab_size}, floats)),
        gatherer(layout, shards, shard, options.poison_buffers),
        model(options.model, options.max_length, floats.device()),
        weights(layout, gatherer),
        pass(layout, model, weights, gatherer, logits) {}

  // Calls body(); when it throws, waits for all transfers and rethrows.
  template <typename Body>
  auto Guarded(Body body) {
    try {
      return body();
    } catch (...) {
      gatherer.Abandon();
      throw;
    }
  }

  const InferenceOptions options;
  const ModelLayout layout;
  const at::TensorOptions floats;
  const int shard_rank;
  const std::vector<at::Tensor> shards;
  const at::Tensor logits;
  UnitGatherer gatherer;
  const Llama model;
  const ModelWeights weights;
  InferencePass pass;
};

InferenceEngine::InferenceEngine(const InferenceOptions& options, collective::Comm& shard) {
  TORCH_CHECK(options.max_length > 0, "max_length must be positive");
  TORCH_CHECK(options.loss_chunk_tokens > 0, "loss_chunk_tokens must be positive");
  impl_ = std::make_unique<Impl>(options, shard);
  SelectMathBackend();
}

InferenceEngine::~InferenceEngine() = default;

void InferenceEngine::Load(const FillFunction& fill) {
  LoadShards(impl_->layout, impl_->shard_rank, fill, impl_->shards);
}

LossSum InferenceEngine::Evaluate(const at::Tensor& tokens) {
  TORCH_CHECK(
      tokens.dim() == 2 && tokens.size(1) >= 2 && tokens.size(1) <= impl_->options.max_length + 1,
      "evaluation takes [B, 2..max_length + 1] tokens, got ", tokens.sizes());
  return impl_->Guarded([&] {
    LossSum result;
    result.loss_sum = impl_->pass.LossSum(tokens.to(impl_->floats.device()));
    result.tokens = tokens.size(0) * (tokens.size(1) - 1);
    return result;
  });
}

at::Tensor InferenceEngine::NextTokenLogits(const at::Tensor& tokens) {
  TORCH_CHECK(
      tokens.dim() == 1 && tokens.size(0) >= 1 && tokens.size(0) <= impl_->options.max_length,
      "takes 1..max_length tokens, got ", tokens.sizes());
  return impl_->Guarded(
      [&] { return impl_->pass.NextTokenLogits(tokens.to(impl_->floats.device())).cpu(); });
}

KeyValueCache InferenceEngine::MakeCache(int64_t batch, int64_t capacity) const {
  TORCH_CHECK(batch > 0, "batch must be positive");
  TORCH_CHECK(capacity > 0 && capacity <= impl_->options.max_length,
              "capacity must be 1..max_length, got ", capacity);
  const ModelConfig& model = impl_->options.model;
  KeyValueCache cache;
  cache.keys = at::zeros(
      {model.num_hidden_layers, batch, model.num_key_value_heads, capacity, model.head_dim},
      impl_->floats);
  cache.values = at::zeros_like(cache.keys);
  return cache;
}

at::Tensor InferenceEngine::Decode(const at::Tensor& tokens, KeyValueCache& cache) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(0) == cache.batch() && tokens.size(1) >= 1,
              "takes [", cache.batch(), ", n] tokens, got ", tokens.sizes());
  TORCH_CHECK(cache.length + tokens.size(1) <= cache.capacity(), "the cache has room for ",
              cache.capacity() - cache.length, " more tokens, got ", tokens.size(1));
  return impl_->Guarded([&] {
    const at::Tensor logits = impl_->pass.Decode(tokens.to(impl_->floats.device()), cache).cpu();
    cache.length += tokens.size(1);
    return logits;
  });
}

int64_t InferenceEngine::parameters() const { return impl_->layout.parameter_count(); }

}  // namespace fedshard::engine
