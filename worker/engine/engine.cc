#include "worker/engine/engine.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "worker/engine/clip.h"
#include "worker/engine/gradient_reducer.h"
#include "worker/engine/inference_pass.h"
#include "worker/engine/initialize.h"
#include "worker/engine/llama.h"
#include "worker/engine/math_backend.h"
#include "worker/engine/parameter_hash.h"
#include "worker/engine/shard_optimizer.h"
#include "worker/engine/training_pass.h"
#include "worker/engine/unit_gatherer.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {
namespace {

at::TensorOptions FloatsOn(const EngineOptions& options) {
  const at::Device device = options.cuda
                                ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(options.gpu))
                                : at::Device(at::kCPU);
  return at::TensorOptions().dtype(at::kFloat).device(device);
}

std::vector<at::Tensor> AllocateMasters(const ModelLayout& layout, at::TensorOptions floats) {
  std::vector<at::Tensor> masters;
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    masters.push_back(at::zeros({layout.shard_size(unit)}, floats));
  }
  return masters;
}

void CheckOptions(const EngineOptions& options) {
  TORCH_CHECK(options.sequence_length > 0, "sequence_length must be positive");
  TORCH_CHECK(options.micro_batch > 0, "micro_batch must be positive");
  TORCH_CHECK(options.accumulation > 0, "accumulation must be positive");
  TORCH_CHECK(options.loss_chunk_tokens > 0, "loss_chunk_tokens must be positive");
}

// Replica and shard to name in a NonFiniteError. by_replica[r]: losses, micro-batch by micro-batch
// and each over the shards; by_shard[s]: sums of squared gradients of shard s.
std::pair<int, int> FirstNonFinite(const std::vector<std::vector<double>>& by_replica,
                                   const std::vector<std::vector<double>>& by_shard) {
  const auto finite = [](double value) { return std::isfinite(value); };
  for (size_t replica = 0; replica < by_replica.size(); ++replica) {
    const std::vector<double>& losses = by_replica[replica];
    const auto bad = std::find_if_not(losses.begin(), losses.end(), finite);
    if (bad != losses.end()) {
      return {static_cast<int>(replica),
              static_cast<int>((bad - losses.begin()) % static_cast<int64_t>(by_shard.size()))};
    }
  }
  for (size_t shard = 0; shard < by_shard.size(); ++shard) {
    if (!std::all_of(by_shard[shard].begin(), by_shard[shard].end(), finite)) {
      return {0, static_cast<int>(shard)};
    }
  }
  return {0, 0};  // Finite parts with an infinite sum.
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineOptions& options, collective::Comm& shard, collective::Comm& replica);

  void InitializeRandom(uint64_t seed);
  void LoadInto(const std::vector<at::Tensor>& tensors, const FillFunction& fill);
  const std::vector<at::Tensor>& State(StateKind kind) const;
  StepResult Step(const std::vector<at::Tensor>& micro_batches, double learning_rate);
  LossSum Evaluate(const at::Tensor& tokens);
  at::Tensor NextTokenLogits(const at::Tensor& tokens);
  std::string ParameterHash();
  at::Tensor GatherParameter(const std::string& name);

  const ModelLayout& layout() const { return layout_; }
  std::vector<at::Tensor>& masters() { return masters_; }
  int shard_rank() const { return shard_.rank(); }
  ShardOptimizer& optimizer() { return optimizer_; }

 private:
  // Calls body(); when it throws, waits for all transfers, forgets the step and rethrows.
  template <typename Body>
  auto Guarded(Body body);
  std::vector<double> ForwardBackward(const std::vector<at::Tensor>& micro_batches);
  // Exchanges losses and gradient blocks, so that every rank of the group gets the same result, or
  // the same NonFiniteError.
  StepResult Measure(const std::vector<double>& losses);
  int64_t GroupTokens() const;

  const EngineOptions options_;
  collective::Comm& shard_;
  collective::Comm& replica_;
  const ModelLayout layout_;
  const at::TensorOptions floats_;
  std::vector<at::Tensor> masters_;
  const at::Tensor logits_;
  UnitGatherer gatherer_;
  GradientReducer reducer_;
  const Llama model_;
  const ModelWeights weights_;
  TrainingPass training_;
  InferencePass inference_;
  ShardOptimizer optimizer_;
};

Engine::Impl::Impl(const EngineOptions& options, collective::Comm& shard, collective::Comm& replica)
    : options_((SelectMathBackend(), CheckOptions(options), options)),
      shard_(shard),
      replica_(replica),
      layout_(options.model, shard.size()),
      floats_(FloatsOn(options)),
      masters_(AllocateMasters(layout_, floats_)),
      logits_(at::empty(
          {std::min(options.loss_chunk_tokens, options.micro_batch * options.sequence_length),
           options.model.vocab_size},
          floats_.dtype(options.precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat))),
      gatherer_(layout_, masters_, shard, options.poison_buffers, options.precision,
                options.gather_precision),
      reducer_(layout_, options, floats_, shard, replica),
      model_(options.model, options.sequence_length, floats_.device()),
      weights_(layout_, gatherer_),
      training_(layout_, model_, weights_, gatherer_, reducer_, logits_, options.recompute),
      inference_(layout_, model_, weights_, gatherer_, logits_),
      optimizer_(options.optimizer, layout_, shard.rank(), masters_) {}

template <typename Body>
auto Engine::Impl::Guarded(Body body) {
  try {
    return body();
  } catch (...) {
    gatherer_.Abandon();
    reducer_.Abandon();
    training_.Abandon();
    throw;
  }
}

void Engine::Impl::InitializeRandom(uint64_t seed) {
  LoadInto(masters_, [&](const std::string& name, int64_t begin, int64_t count, float* out) {
    if (layout_.units()[layout_.UnitOf(name)].Find(name).decay) {
      FillNormal(seed, name, options_.model.initializer_range, begin, count, out);
    } else {
      std::fill_n(out, count, 1.0f);
    }
  });
}

void Engine::Impl::LoadInto(const std::vector<at::Tensor>& tensors, const FillFunction& fill) {
  LoadShards(layout_, shard_.rank(), fill, tensors);
}

const std::vector<at::Tensor>& Engine::Impl::State(StateKind kind) const {
  switch (kind) {
    case StateKind::kParameters:
      return masters_;
    case StateKind::kFirstMoment:
      return optimizer_.first_moments();
    case StateKind::kSecondMoment:
      return optimizer_.second_moments();
  }
  TORCH_CHECK(false, "unknown kind of state");
}

StepResult Engine::Impl::Step(const std::vector<at::Tensor>& micro_batches, double learning_rate) {
  TORCH_CHECK(static_cast<int64_t>(micro_batches.size()) == options_.accumulation, "a step takes ",
              options_.accumulation, " micro-batches, got ", micro_batches.size());
  for (const at::Tensor& tokens : micro_batches) {
    TORCH_CHECK(
        tokens.sizes() == at::IntArrayRef({options_.micro_batch, options_.sequence_length + 1}),
        "a micro-batch is [", options_.micro_batch, ", ", options_.sequence_length + 1, "], got ",
        tokens.sizes());
  }
  return Guarded([&] {
    const StepResult result = Measure(ForwardBackward(micro_batches));
    const double factor = ClipFactor(result.gradient_norm, options_.optimizer.clip);
    if (factor != 1) {
      for (const at::Tensor& gradient : reducer_.sums()) gradient.mul_(factor);
    }
    optimizer_.Step(reducer_.sums(), learning_rate);
    return result;
  });
}

std::vector<double> Engine::Impl::ForwardBackward(const std::vector<at::Tensor>& micro_batches) {
  const double scale = 1.0 / static_cast<double>(GroupTokens());
  reducer_.BeginStep();
  std::vector<at::Tensor> losses;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const bool more = i + 1 < micro_batches.size();
    losses.push_back(training_.Run(micro_batches[i].to(floats_.device()), scale, more));
  }
  reducer_.FinishStep();
  std::vector<double> values;
  for (const at::Tensor& loss : losses) values.push_back(loss.item<double>());
  return values;
}

StepResult Engine::Impl::Measure(const std::vector<double>& losses) {
  std::vector<double> mine;
  std::vector<int64_t> unit_blocks;
  for (const at::Tensor& gradient : reducer_.sums()) {
    AppendBlockSums(gradient, mine);
    unit_blocks.push_back(gradient.numel() / kBlockElements);
  }
  const size_t blocks = mine.size();
  mine.insert(mine.end(), losses.begin(), losses.end());
  const std::vector<std::vector<double>> by_shard = shard_.AllGatherScalars(mine);

  // In the order of micro-batch ids, r*(M*S) + m*S + s, so that the sum is the same for every mesh.
  std::vector<double> replica_losses;
  for (size_t m = 0; m < losses.size(); ++m) {
    for (const std::vector<double>& of_rank : by_shard) {
      replica_losses.push_back(of_rank[blocks + m]);
    }
  }
  const std::vector<std::vector<double>> by_replica = replica_.AllGatherScalars(replica_losses);
  double loss_sum = 0;
  for (const std::vector<double>& of_replica : by_replica) {
    for (double loss : of_replica) loss_sum += loss;
  }

  StepResult result;
  result.tokens = GroupTokens();
  result.loss = loss_sum / static_cast<double>(result.tokens);
  result.gradient_norm = GradientNorm(by_shard, unit_blocks);
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) {
    const auto [replica, shard] = FirstNonFinite(by_replica, by_shard);
    throw NonFiniteError("loss " + std::to_string(result.loss) + ", gradient norm " +
                             std::to_string(result.gradient_norm),
                         replica, shard);
  }
  return result;
}

LossSum Engine::Impl::Evaluate(const at::Tensor& tokens) {
  TORCH_CHECK(
      tokens.dim() == 2 && tokens.size(1) >= 2 && tokens.size(1) <= options_.sequence_length + 1,
      "evaluation takes [B, 2..T+1] tokens, got ", tokens.sizes());
  return Guarded([&] {
    LossSum result;
    result.loss_sum = inference_.LossSum(tokens.to(floats_.device()));
    result.tokens = tokens.size(0) * (tokens.size(1) - 1);
    return result;
  });
}

at::Tensor Engine::Impl::NextTokenLogits(const at::Tensor& tokens) {
  TORCH_CHECK(
      tokens.dim() == 1 && tokens.size(0) >= 1 && tokens.size(0) <= options_.sequence_length,
      "takes 1..T tokens, got ", tokens.sizes());
  return Guarded([&] { return inference_.NextTokenLogits(tokens.to(floats_.device())).cpu(); });
}

std::string Engine::Impl::ParameterHash() {
  return Guarded([&] {
    std::map<std::string, uint64_t> fingerprints;
    for (int unit = 0; unit < static_cast<int>(masters_.size()); ++unit) {
      const at::Tensor full = gatherer_.GatherMaster(unit).cpu();
      for (const ParameterSpec& parameter : layout_.units()[unit].parameters) {
        fingerprints[parameter.name] =
            TensorFingerprint(full.narrow(0, parameter.offset, parameter.size));
      }
    }
    return HexHash(fingerprints);
  });
}

at::Tensor Engine::Impl::GatherParameter(const std::string& name) {
  return Guarded([&] {
    const int unit = layout_.UnitOf(name);
    const ParameterSpec& parameter = layout_.units()[unit].Find(name);
    const at::Tensor whole = gatherer_.GatherMaster(unit);
    return whole.narrow(0, parameter.offset, parameter.size).clone().view(parameter.shape);
  });
}

int64_t Engine::Impl::GroupTokens() const {
  return options_.micro_batch * options_.sequence_length * options_.accumulation * shard_.size() *
         replica_.size();
}

Engine::Engine(const EngineOptions& options, collective::Comm& shard, collective::Comm& replica)
    : impl_(std::make_unique<Impl>(options, shard, replica)) {}
Engine::~Engine() = default;

void Engine::InitializeRandom(uint64_t seed) { impl_->InitializeRandom(seed); }

void Engine::Load(StateKind kind, const FillFunction& fill) {
  impl_->LoadInto(impl_->State(kind), fill);
}

void Engine::LoadInto(const std::vector<at::Tensor>& tensors, const FillFunction& fill) {
  impl_->LoadInto(tensors, fill);
}

std::vector<StateKind> Engine::StateKinds() const {
  std::vector<StateKind> kinds;
  for (StateKind kind :
       {StateKind::kParameters, StateKind::kFirstMoment, StateKind::kSecondMoment}) {
    if (!impl_->State(kind).empty()) kinds.push_back(kind);
  }
  return kinds;
}

const std::vector<at::Tensor>& Engine::State(StateKind kind) const { return impl_->State(kind); }

std::vector<ShardPiece> Engine::Pieces(int unit) const {
  return impl_->layout().Pieces(unit, impl_->shard_rank());
}

const ModelLayout& Engine::layout() const { return impl_->layout(); }

int64_t Engine::optimizer_steps() const { return impl_->optimizer().steps(); }

void Engine::set_optimizer_steps(int64_t steps) { impl_->optimizer().set_steps(steps); }

StepResult Engine::Step(const std::vector<at::Tensor>& micro_batches, double learning_rate) {
  return impl_->Step(micro_batches, learning_rate);
}

LossSum Engine::Evaluate(const at::Tensor& tokens) { return impl_->Evaluate(tokens); }

at::Tensor Engine::NextTokenLogits(const at::Tensor& tokens) {
  return impl_->NextTokenLogits(tokens);
}

std::vector<at::Tensor>& Engine::master_shards() { return impl_->masters(); }

uint64_t Engine::ShardHash() const { return FingerprintOf(impl_->masters()); }

std::string Engine::ParameterHash() { return impl_->ParameterHash(); }

int64_t Engine::parameters() const { return impl_->layout().parameter_count(); }

int64_t Engine::padded_parameters() const { return impl_->layout().padded_count(); }

at::Tensor Engine::GatherParameter(const std::string& name) { return impl_->GatherParameter(name); }

std::vector<std::string> Engine::ParameterNames() const {
  std::vector<std::string> names;
  for (const UnitLayout& unit : impl_->layout().units()) {
    for (const ParameterSpec& parameter : unit.parameters) names.push_back(parameter.name);
  }
  return names;
}

}  // namespace fedshard::engine
