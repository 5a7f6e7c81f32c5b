#include "worker/trainer/engine_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <chrono>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/collective/group_factory.h"
#include "worker/collective/nccl_plugin.h"
#include "worker/collective/store_adapter.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"
#include "worker/engine/engine.h"
#include "worker/engine/math_backend.h"
#include "worker/engine/precision_support.h"
#include "worker/federation/averager.h"
#include "worker/trainer/evaluation_plan.h"
#include "worker/trainer/model_options.h"
#include "worker/trainer/rank_checkpoint.h"
#include "worker/trainer/sampling.h"

namespace fedshard::trainer {
namespace {

// Between groups' first ranks starting to read their files and the last one being done. The
// coordinator ends a job that does not start much earlier.
constexpr std::chrono::minutes kDataCheckTimeout(10);

void PrepareProcess(const Settings& settings, int gpu) {
  if (settings.cuda) {
    try {
      collective::RequireGpu(gpu);
    } catch (const collective::CommError& error) {
      throw Failure("NO_GPU", error.what());
    }
  }
  if (settings.step.bf16 && !settings.step.force) {
    if (const std::string why = engine::WhyNotBf16(settings.cuda, gpu); !why.empty()) {
      throw Failure("SLOW_PRECISION",
                    absl::StrCat("training.precision bf16: ", why,
                                 "; training.force_precision: true takes it all the same"));
    }
  }
  at::set_num_threads(settings.threads);
  at::set_num_interop_threads(1);
  // glibc maps tensors above 32 MiB afresh at each operation, and page faults then cost more than
  // the arithmetic.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

std::unique_ptr<data::TokenFile> OpenTokens(const std::string& path, bool verify,
                                            const Settings& settings) {
  auto file = data::TokenFile::Open(path, verify);
  if (!file.ok()) throw Failure("BAD_TOKEN_FILE", std::string(file.status().message()));
  const absl::Status fits =
      (*file)->CheckFits(settings.model.vocab_size, settings.sequence_length + 1);
  if (!fits.ok()) throw Failure("BAD_TOKEN_FILE", std::string(fits.message()));
  return *std::move(file);
}

// Collectives do not wait for files: all ranks meet here once the first rank of each group has read
// its own. A rank that found something wrong has said so, and the control plane ends the wait of
// the others.
void AwaitDataChecks(const ModelInputs& inputs, bool checked) {
  const Mesh& mesh = inputs.settings->mesh;
  const auto key = [](int32_t group) { return absl::StrCat("data-checked/", group); };
  const int32_t own = mesh.CoordinatesOf(inputs.start.rank).group;
  std::vector<std::string> others;
  for (int32_t group = 0; group < mesh.groups; ++group) {
    if (group != own) others.push_back(key(group));
  }
  try {
    if (checked) inputs.group_keys->Set(key(own), {1});
    if (checked && !others.empty()) inputs.federation_keys->Set(key(own), {1});
    inputs.group_keys->Get({key(own)}, kDataCheckTimeout);
    if (!others.empty()) inputs.federation_keys->Get(others, kDataCheckTimeout);
  } catch (const std::exception& error) {
    throw collective::CommError(absl::StrCat("waiting for the data checks: ", error.what()));
  }
}

class EngineModel : public RankModel {
 public:
  explicit EngineModel(const ModelInputs& inputs)
      : settings_(*inputs.settings),
        rank_(inputs.start.rank),
        at_(settings_.mesh.CoordinatesOf(rank_)) {
    // One rank of each group reads its files from end to end; the others check their sizes.
    const bool verify = at_.replica == 0 && at_.shard == 0;
    train_ = OpenTokens(settings_.train_path, verify, settings_);
    sampler_ = std::make_unique<data::Sampler>(
        train_->info().count, settings_.sequence_length, settings_.data_seed,
        settings_.shuffled ? data::Order::kShuffled : data::Order::kSequential);
    if (settings_.evaluation_sequences > 0) {
      validation_ = OpenTokens(settings_.validation_path, verify, settings_);
    }
    AwaitDataChecks(inputs, verify);
    Connect(inputs);
    inputs.on_connected([comms = comms_] { comms->Abort(); });
    engine_ = std::make_unique<engine::Engine>(EngineOptionsFrom(settings_, inputs.start.gpu),
                                               *comms_->shard, *comms_->replica);
    LoadWeights();
    if (settings_.averages) {
      averager_ = std::make_unique<federation::Averager>(
          engine_->master_shards(), *comms_->federation, AveragerOptionsFrom(settings_.federation));
    }
    checkpoints_ =
        std::make_unique<RankCheckpoint>(settings_, inputs.start, *engine_, averager_.get());
    if (!settings_.checkpoint.resume.empty()) checkpoints_->Load(settings_.checkpoint.resume);
  }

  StepOutcome Step(int64_t step, int64_t first_sample, double learning_rate) override {
    std::vector<at::Tensor> micro_batches;
    for (int64_t m = 0; m < settings_.accumulation; ++m) {
      const int64_t id =
          (at_.replica * settings_.accumulation + m) * settings_.mesh.shards + at_.shard;
      micro_batches.push_back(
          Samples(first_sample + id * settings_.micro_batch, settings_.micro_batch));
    }
    engine::StepResult result;
    try {
      result = engine_->Step(micro_batches, learning_rate);
    } catch (const engine::NonFiniteError& error) {
      return Skip(step, error);
    }
    if (settings_.check_replicas_every > 0 && settings_.mesh.replicas > 1 &&
        step % settings_.check_replicas_every == 0) {
      CheckReplicas(step);
    }
    return {result.loss, result.gradient_norm, result.tokens, false};
  }

  uint64_t ShardHash() override { return engine_->ShardHash(); }
  void BeginAverage() override { averager_->Begin(1.0 / settings_.mesh.groups); }
  uint64_t Average(double weight) override {
    weight_ = weight;
    return averager_->Average(weight);
  }
  void CommitAverage() override {
    averager_->Commit();
    switch (settings_.federation.moments) {
      case MomentsPolicy::kLocal:
        return;
      case MomentsPolicy::kAverage:
        for (const engine::StateKind kind : Moments()) {
          averager_->AverageState(engine_->State(kind), weight_);
        }
        return;
      case MomentsPolicy::kReset:
        for (const engine::StateKind kind : Moments()) {
          for (at::Tensor moment : engine_->State(kind)) moment.zero_();
        }
        engine_->set_optimizer_steps(0);
    }
  }
  void DropAverage() override { averager_->Abort(); }

  std::pair<double, int64_t> Evaluate() override {
    const int64_t available = (validation_->info().count - 1) / settings_.sequence_length;
    const int64_t windows = std::min(settings_.evaluation_sequences, available);
    double loss_sum = 0, tokens = 0;
    for (const int64_t window : EvaluationWindows(settings_.mesh, rank_, windows)) {
      at::Tensor batch = at::empty({1, settings_.sequence_length + 1}, at::kLong);
      validation_->Read(std::max<int64_t>(window, 0) * settings_.sequence_length,
                        settings_.sequence_length + 1, batch.mutable_data_ptr<int64_t>());
      const engine::LossSum loss = engine_->Evaluate(batch);
      if (window < 0) continue;
      loss_sum += loss.loss_sum;
      tokens += static_cast<double>(loss.tokens);
    }
    // In rank order, so every rank has the same sum.
    for (collective::Comm* comm : {comms_->shard.get(), comms_->replica.get()}) {
      double loss_of_all = 0, tokens_of_all = 0;
      for (const auto& part : comm->AllGatherScalars({loss_sum, tokens})) {
        loss_of_all += part[0];
        tokens_of_all += part[1];
      }
      loss_sum = loss_of_all;
      tokens = tokens_of_all;
    }
    return {loss_sum, static_cast<int64_t>(tokens)};
  }

  std::string ParameterHash() override { return engine_->ParameterHash(); }
  void SaveCheckpoint(const CheckpointOrder& order) override { checkpoints_->Save(order); }
  std::vector<CheckpointOutcome> CheckpointOutcomes(bool wait) override {
    return checkpoints_->Outcomes(wait);
  }

  std::vector<uint32_t> Sample() override {
    const SampleSettings& sample = settings_.sample;
    if (sample.tokens == 0 || at_.group != 0 || at_.replica != 0) return {};
    std::mt19937_64 random(sample.seed);
    std::vector<int64_t> context(sample.prompt.begin(), sample.prompt.end());
    std::vector<uint32_t> result = sample.prompt;
    for (int32_t i = 0; i < sample.tokens; ++i) {
      const int64_t length =
          std::min<int64_t>(settings_.sequence_length, static_cast<int64_t>(context.size()));
      const at::Tensor logits = engine_->NextTokenLogits(
          at::tensor(at::ArrayRef<int64_t>(context.data() + context.size() - length, length),
                     at::kLong)
              .contiguous());
      const float* values = logits.const_data_ptr<float>();
      uint64_t token =
          PickToken({values, values + logits.numel()}, {sample.temperature, 1}, random);
      // The first shard's choice holds, whatever CPU the others have.
      token = comms_->shard->AllGatherWords({token})[0][0];
      context.push_back(static_cast<int64_t>(token));
      result.push_back(static_cast<uint32_t>(token));
    }
    return result;
  }

  SentBytes Sent() override {
    return {comms_->shard->bytes_sent(), comms_->replica->bytes_sent(),
            comms_->federation->bytes_sent()};
  }
  int64_t parameters() override { return engine_->parameters(); }
  int64_t padded_parameters() override { return engine_->padded_parameters(); }

 private:
  void LoadWeights() {
    if (!settings_.checkpoint.resume.empty()) return;  // The checkpoint has them.
    if (settings_.init_directory.empty()) return engine_->InitializeRandom(settings_.model_seed);
    const auto weights = checkpoint::HfWeights::Open(settings_.init_directory, settings_.model);
    if (!weights.ok()) throw Failure("BAD_WEIGHTS", std::string(weights.status().message()));
    engine_->Load(engine::StateKind::kParameters,
                  [&](const std::string& parameter, int64_t begin, int64_t count, float* out) {
                    const absl::Status read = (*weights)->Read(parameter, begin, count, out);
                    if (!read.ok()) throw Failure("BAD_WEIGHTS", std::string(read.message()));
                  });
  }

  // Every rank of the group gets here for the same step, so all go on or all give up.
  StepOutcome Skip(int64_t step, const engine::NonFiniteError& error) {
    const int32_t where = settings_.mesh.RankOf({at_.group, error.replica, error.shard});
    const std::string what = absl::StrCat("step ", step, ", rank ", where, ": ", error.what());
    if (++skipped_ > settings_.non_finite_limit) {
      throw Failure("NON_FINITE_LOSS", settings_.non_finite_limit == 0
                                           ? what
                                           : absl::StrCat(what, "; ", settings_.non_finite_limit,
                                                          " such steps were skipped before"));
    }
    LogWarning(absl::StrCat(what, ": skipped"));
    const double none = std::numeric_limits<double>::quiet_NaN();
    return {none, none, settings_.samples_per_step() * settings_.sequence_length, true};
  }

  std::vector<engine::StateKind> Moments() const {
    std::vector<engine::StateKind> kinds;
    for (const engine::StateKind kind : engine_->StateKinds()) {
      if (kind != engine::StateKind::kParameters) kinds.push_back(kind);
    }
    return kinds;
  }

  void Connect(const ModelInputs& inputs) {
    const std::chrono::milliseconds timeout(settings_.collective_timeout_ms);
    collective::GroupOptions options;
    options.backend = settings_.cuda ? collective::Backend::kNccl : collective::Backend::kGloo;
    options.address = inputs.start.data_address;
    options.timeout = timeout;
    options.gpu = inputs.start.gpu;
    comms_ = std::make_shared<collective::MeshComms>(collective::ConnectMesh(
        settings_.mesh, rank_, collective::MakeStore(inputs.group_keys, timeout),
        collective::MakeStore(inputs.federation_keys, timeout), options));
  }

  // [count, T+1] of samples first, first + 1, …
  at::Tensor Samples(int64_t first, int64_t count) {
    const int64_t length = settings_.sequence_length + 1;
    at::Tensor batch = at::empty({count, length}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      train_->Read(sampler_->FirstToken(first + i), length,
                   batch.mutable_data_ptr<int64_t>() + i * length);
    }
    return batch;
  }

  void CheckReplicas(int64_t step) {
    const auto hashes = comms_->replica->AllGatherWords({engine_->ShardHash()});
    for (size_t replica = 1; replica < hashes.size(); ++replica) {
      if (hashes[replica] != hashes[0]) {
        const Mesh& mesh = settings_.mesh;
        throw Failure(
            "REPLICAS_DIFFER",
            absl::StrCat("after step ", step, " shard ", at_.shard, " differs between rank ",
                         mesh.RankOf({at_.group, 0, at_.shard}), " and rank ",
                         mesh.RankOf({at_.group, static_cast<int32_t>(replica), at_.shard})));
      }
    }
  }

  const Settings& settings_;
  const int32_t rank_;
  const MeshCoordinates at_;
  std::unique_ptr<data::TokenFile> train_, validation_;
  std::unique_ptr<data::Sampler> sampler_;
  // Outlives the engine and the averager; shared with the abort hook.
  std::shared_ptr<collective::MeshComms> comms_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<federation::Averager> averager_;
  std::unique_ptr<RankCheckpoint> checkpoints_;
  double weight_ = 0;    // Of this group in the average that is pending.
  int64_t skipped_ = 0;  // Steps that were not finite.
};

}  // namespace

std::unique_ptr<RankModel> MakeEngineModel(const ModelInputs& inputs) {
  PrepareProcess(*inputs.settings, inputs.start.gpu);
  auto model = std::make_unique<EngineModel>(inputs);
  LogInfo(absl::StrCat(model->parameters(), " parameters, ", model->padded_parameters(),
                       " with padding"));
  return model;
}

Failure AsFailure(const std::exception& error) {
  if (dynamic_cast<const collective::CommError*>(&error) != nullptr) {
    return Failure("COLLECTIVE_FAILED", error.what());
  }
  // LibTorch's own errors carry pages of stack.
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return Failure("INTERNAL",
                 torch_error != nullptr ? torch_error->what_without_backtrace() : error.what());
}

}  // namespace fedshard::trainer
