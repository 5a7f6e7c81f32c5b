#include "worker/trainer/rank_checkpoint.h"

#include <ATen/ATen.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/version.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/shard_description.h"

namespace fedshard::trainer {
namespace {

std::string Stem(int32_t group, int32_t shard) {
  return absl::StrCat("group-", group, "-shard-", shard);
}

std::string KindName(engine::StateKind kind) {
  switch (kind) {
    case engine::StateKind::kParameters:
      return "parameters";
    case engine::StateKind::kFirstMoment:
      return "first_moment";
    case engine::StateKind::kSecondMoment:
      return "second_moment";
  }
  return "";
}

void ThrowIfBad(const absl::Status& status) {
  if (!status.ok()) throw Failure("BAD_CHECKPOINT", std::string(status.message()));
}

}  // namespace

RankCheckpoint::RankCheckpoint(const Settings& settings, const RankStart& start,
                               engine::Engine& engine, federation::Averager* averager)
    : settings_(settings),
      job_(start.job),
      at_(settings.mesh.CoordinatesOf(start.rank)),
      engine_(engine),
      averager_(averager) {
  if (settings.checkpoint.directory.empty()) return;
  writer_ = std::make_unique<checkpoint::CheckpointWriter>(
      Options(start), [this](const checkpoint::WriteResult& result) {
        const MutexLock lock(mu_);
        outcomes_.push_back({result.step, result.path, result.bytes, result.seconds, result.error});
      });
}

RankCheckpoint::~RankCheckpoint() = default;

checkpoint::WriterOptions RankCheckpoint::Options(const RankStart& start) const {
  checkpoint::WriterOptions options;
  options.directory = settings_.checkpoint.directory;
  options.keep = settings_.checkpoint.keep;
  // The federation's generation is the same for all ranks of one life of the job.
  options.attempt = absl::StrCat(start.job, "-", start.federation_generation);
  options.leader = start.rank == 0;
  if (at_.replica == 0) options.file_stem = Stem(at_.group, at_.shard);
  for (int32_t group = 0; group < settings_.mesh.groups; ++group) {
    for (int32_t shard = 0; shard < settings_.mesh.shards; ++shard) {
      options.all_stems.push_back(Stem(group, shard));
    }
  }
  return options;
}

void RankCheckpoint::Save(const CheckpointOrder& order) {
  if (writer_ == nullptr) return;
  checkpoint::Manifest manifest;
  manifest.job = job_;
  manifest.model_config = settings_.model_config;
  manifest.mesh = settings_.mesh;
  manifest.step = order.step;
  manifest.tokens = order.tokens;
  manifest.next_sample = order.next_sample;
  manifest.model_seed = settings_.model_seed;
  manifest.data_seed = settings_.data_seed;
  manifest.optimizer_steps = engine_.optimizer_steps();
  manifest.created = FormatTimestamp(SystemClock().Now().wall_us);
  manifest.version = ProjectVersion();
  writer_->Start(manifest, Tensors());
  staged_.clear();
}

std::vector<CheckpointOutcome> RankCheckpoint::Outcomes(bool wait) {
  if (wait && writer_ != nullptr) writer_->Wait();
  const MutexLock lock(mu_);
  return std::exchange(outcomes_, {});
}

std::vector<checkpoint::TensorToStore> RankCheckpoint::Tensors() {
  std::vector<checkpoint::TensorToStore> out;
  if (at_.replica != 0) return out;
  for (const engine::StateKind kind : engine_.StateKinds()) {
    if (kind == engine::StateKind::kParameters && at_.group != 0) continue;
    Store(KindName(kind), engine_.State(kind), out);
  }
  if (averager_ == nullptr) return out;
  for (const federation::AveragerState& state : averager_->State()) {
    if (state.same_in_all_groups && at_.group != 0) continue;
    Store(state.kind, state.tensors, out);
  }
  return out;
}

void RankCheckpoint::Store(const std::string& kind, const std::vector<at::Tensor>& tensors,
                           std::vector<checkpoint::TensorToStore>& out) {
  const char* dtype = tensors.front().scalar_type() == at::kBFloat16 ? "BF16" : "F32";
  std::vector<checkpoint::FlatTensor> descriptions =
      checkpoint::DescribeShard(engine_.layout(), at_.shard, kind, at_.group, dtype);
  for (size_t unit = 0; unit < tensors.size(); ++unit) {
    staged_.push_back(tensors[unit].cpu());
    out.push_back({std::move(descriptions[unit]), staged_.back().const_data_ptr()});
  }
}

void RankCheckpoint::Load(const std::string& path) {
  auto reader = checkpoint::CheckpointReader::Open(path);
  ThrowIfBad(reader.status());
  const checkpoint::Manifest& manifest = (*reader)->manifest();
  ThrowIfBad(checkpoint::CheckModel(manifest, engine_.layout(), "parameters"));
  const auto fill_from = [&](const std::string& kind) {
    auto source = (*reader)->Source(kind, at_.group);
    ThrowIfBad(source.status());
    return [source = std::shared_ptr<checkpoint::ParameterSource>(*std::move(source))](
               const std::string& parameter, int64_t begin, int64_t count, float* out) {
      ThrowIfBad(source->Read(parameter, begin, count, out));
    };
  };
  for (const engine::StateKind kind : engine_.StateKinds()) {
    const std::string name = KindName(kind);
    if (kind == engine::StateKind::kParameters || (*reader)->Has(name)) {
      engine_.Load(kind, fill_from(name));
    } else {
      LogWarning(absl::StrCat(path, " has no ", name, ": it begins at zero"));
    }
  }
  engine_.set_optimizer_steps(manifest.optimizer_steps);
  if (averager_ == nullptr) return;
  averager_->Restart();
  for (federation::AveragerState& state : averager_->State()) {
    if (!(*reader)->Has(state.kind)) continue;
    // What is a group's own is none of a group that the checkpoint does not know.
    if (!state.same_in_all_groups && at_.group >= manifest.mesh.groups) continue;
    engine_.LoadInto(state.tensors, fill_from(state.kind));
  }
}

}  // namespace fedshard::trainer
