#include "common/spec/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "common/ids.h"
#include "common/spec/model_config_json.h"

namespace fedshard {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxSteps = int64_t{1} << 40;
constexpr int64_t kMaxBatch = 1 << 20;
constexpr int64_t kMaxSequence = 1 << 24;

// Also of specifications that are not valid yet: sticks at the largest value instead of
// overflowing.
int64_t Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return INT64_MAX;
  }
  return product;
}

class Violations {
 public:
  void Add(const std::string& field, const std::string& description) {
    v1::FieldViolation violation;
    violation.set_field(field);
    violation.set_description(description);
    list_.push_back(std::move(violation));
  }
  void Range(const std::string& field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
      Add(field, absl::StrCat("must be ", low, " to ", high, ", not ", value));
    }
  }
  // A finite number in [low, high], or in [low, high) when `open`.
  void Real(const std::string& field, double value, double low, double high, bool open = false) {
    if (!(value >= low) || !(open ? value < high : value <= high)) {
      Add(field, absl::StrCat("must be from ", low, open ? " to below " : " to ", high, ", not ",
                              std::isnan(value) ? "nan" : absl::StrCat(value)));
    }
  }
  bool empty() const { return list_.empty(); }
  std::vector<v1::FieldViolation> Take() { return std::move(list_); }

 private:
  std::vector<v1::FieldViolation> list_;
};

void CheckMesh(const v1::MeshSpec& mesh, Violations& out) {
  const int64_t f = mesh.federation_groups(), r = mesh.replicas(), s = mesh.shards();
  out.Range("mesh.federation_groups", f, 1, kMaxRanks);
  out.Range("mesh.replicas", r, 1, kMaxRanks);
  out.Range("mesh.shards", s, 1, kMaxRanks);
  if (!out.empty()) return;
  if (f * r > kMaxRanks || f * r * s > kMaxRanks) {
    out.Add("mesh", absl::StrCat("has more than ", kMaxRanks, " ranks"));
  }
  const std::string mode = MeshModeName(mesh.mode());
  const bool federated =
      mesh.mode() == v1::MESH_MODE_FL_FSDP || mesh.mode() == v1::MESH_MODE_FL_HSDP;
  const bool replicated = mesh.mode() == v1::MESH_MODE_HSDP || mesh.mode() == v1::MESH_MODE_FL_HSDP;
  if (mode.empty()) {
    out.Add("mesh.mode", "must be fsdp, hsdp, fl+fsdp or fl+hsdp");
  } else {
    if (!federated && f != 1) {
      out.Add("mesh.federation_groups", absl::StrCat("must be 1 in mode ", mode, ", not ", f));
    }
    if (federated && f < 2) {
      out.Add("mesh.federation_groups",
              absl::StrCat("must be at least 2 in mode ", mode, ", not ", f));
    }
    if (!replicated && r != 1) {
      out.Add("mesh.replicas", absl::StrCat("must be 1 in mode ", mode, ", not ", r));
    }
  }
}

void CheckOptimizer(const v1::OptimizerSpec& optimizer, Violations& out) {
  const std::string at = "training.optimizer.";
  const double huge = 1e38;
  out.Real(at + "learning_rate", optimizer.learning_rate(), 0, huge);
  out.Real(at + "weight_decay", optimizer.weight_decay(), 0, huge);
  out.Real(at + "clip", optimizer.clip(), 0, huge);
  switch (optimizer.type()) {
    case v1::OPTIMIZER_TYPE_ADAMW:
      out.Real(at + "beta1", optimizer.beta1(), 0, 1, true);
      out.Real(at + "beta2", optimizer.beta2(), 0, 1, true);
      out.Real(at + "eps", optimizer.eps(), 0, 1);
      break;
    case v1::OPTIMIZER_TYPE_SGD:
      out.Real(at + "momentum", optimizer.momentum(), 0, 1, true);
      break;
    default:
      out.Add(at + "type", "must be adamw or sgd");
  }
}

void CheckTraining(const v1::TrainingSpec& training, Violations& out) {
  out.Range("training.steps", training.steps(), 1, kMaxSteps);
  out.Range("training.micro_batch", training.micro_batch(), 1, kMaxBatch);
  out.Range("training.accumulation", training.accumulation(), 1, kMaxBatch);
  out.Range("training.check_replicas_every", training.check_replicas_every(), 0, INT32_MAX);
  CheckOptimizer(training.optimizer(), out);
  const v1::ScheduleSpec& schedule = training.schedule();
  out.Range("training.schedule.warmup_tokens", schedule.warmup_tokens(), 0, INT64_MAX);
  if (schedule.type() == v1::SCHEDULE_TYPE_COSINE) {
    out.Real("training.schedule.final_ratio", schedule.final_ratio(), 0, 1);
  } else if (schedule.type() != v1::SCHEDULE_TYPE_CONSTANT) {
    out.Add("training.schedule.type", "must be constant or cosine");
  }
}

void CheckData(const v1::DataSpec& data, Violations& out) {
  out.Range("data.sequence_length", data.sequence_length(), 1, kMaxSequence);
  if (data.train().empty() || data.train()[0] != '/') {
    out.Add("data.train", "must be an absolute path of a token file");
  }
  if (!data.validation().empty() && data.validation()[0] != '/') {
    out.Add("data.validation", "must be an absolute path of a token file");
  }
  if (data.order() != v1::SAMPLE_ORDER_SHUFFLED && data.order() != v1::SAMPLE_ORDER_SEQUENTIAL) {
    out.Add("data.order", "must be shuffled or sequential");
  }
}

void CheckModel(const v1::JobSpec& spec, Violations& out) {
  if (spec.model().init() != v1::MODEL_INIT_RANDOM) out.Add("model.init", "must be random");
  const auto model = ParseModelConfig(spec.model().config_json());
  if (!model.ok()) {
    out.Add("model.config", std::string(model.status().message()));
    return;
  }
  if (spec.data().sequence_length() > model->max_position_embeddings) {
    out.Add("data.sequence_length",
            absl::StrCat("must be at most the model's max_position_embeddings = ",
                         model->max_position_embeddings, ", not ", spec.data().sequence_length()));
  }
  for (const uint32_t token : spec.evaluation().sample().prompt_tokens()) {
    if (token >= model->vocab_size) {
      out.Add("evaluation.sample.prompt",
              absl::StrCat("token ", token, " is beyond the vocabulary of ", model->vocab_size));
      break;
    }
  }
}

void CheckEvaluation(const v1::JobSpec& spec, Violations& out) {
  const v1::EvaluationSpec& evaluation = spec.evaluation();
  out.Range("evaluation.every_rounds", evaluation.every_rounds(), 0, INT32_MAX);
  out.Range("evaluation.sequences", evaluation.sequences(), 0, 1 << 24);
  if (evaluation.sequences() > 0 && spec.data().validation().empty()) {
    out.Add("data.validation", "is missing, but evaluation.sequences is not 0");
  }
  if (evaluation.has_sample()) {
    out.Range("evaluation.sample.tokens", evaluation.sample().tokens(), 1, 100'000);
    out.Range("evaluation.sample.prompt", evaluation.sample().prompt_tokens_size(), 1, 100'000);
    out.Real("evaluation.sample.temperature", evaluation.sample().temperature(), 0, 100);
  }
}

}  // namespace

std::vector<v1::FieldViolation> ValidateSpec(const v1::JobSpec& spec) {
  Violations out;
  if (const absl::Status id = ValidateId("name", spec.id()); !id.ok()) {
    out.Add("id", std::string(id.message()));
  }
  CheckMesh(spec.mesh(), out);
  CheckModel(spec, out);
  CheckData(spec.data(), out);
  CheckTraining(spec.training(), out);
  out.Range("federation.every_steps", spec.federation().every_steps(), 1, INT32_MAX);
  out.Range("federation.chunk_bytes", spec.federation().chunk_bytes(), 4096, int64_t{1} << 34);
  if (spec.federation().weighting() != v1::WEIGHTING_TOKENS &&
      spec.federation().weighting() != v1::WEIGHTING_EQUAL) {
    out.Add("federation.weighting", "must be tokens or equal");
  }
  CheckEvaluation(spec, out);
  if (spec.resources().device() != v1::DEVICE_CPU && spec.resources().device() != v1::DEVICE_CUDA) {
    out.Add("resources.device", "must be cpu or cuda");
  }
  out.Range("resources.threads_per_rank", spec.resources().threads_per_rank(), 1, 1024);
  out.Range("resources.collective_timeout", spec.resources().collective_timeout_seconds(), 1,
            86'400);
  if (out.empty()) {
    // Bounded factors, but the product may still leave 64 bits.
    const double tokens = static_cast<double>(spec.training().steps()) *
                          spec.training().micro_batch() * spec.training().accumulation() *
                          WorldSize(spec) * static_cast<double>(spec.data().sequence_length());
    if (tokens > 9e18) out.Add("training.steps", "gives more than 9e18 tokens");
  }
  return out.Take();
}

int32_t WorldSize(const v1::JobSpec& spec) {
  return static_cast<int32_t>(std::min<int64_t>(
      Product({spec.mesh().federation_groups(), spec.mesh().replicas(), spec.mesh().shards()}),
      INT32_MAX));
}

int64_t SamplesPerGroupStep(const v1::JobSpec& spec) {
  return Product({spec.training().micro_batch(), spec.training().accumulation(),
                  spec.mesh().replicas(), spec.mesh().shards()});
}

int64_t TokensPerStep(const v1::JobSpec& spec) {
  return Product(
      {SamplesPerGroupStep(spec), spec.mesh().federation_groups(), spec.data().sequence_length()});
}

int64_t TotalTokens(const v1::JobSpec& spec) {
  return Product({TokensPerStep(spec), spec.training().steps()});
}

bool Averages(const v1::JobSpec& spec) {
  return spec.mesh().mode() == v1::MESH_MODE_FL_FSDP || spec.mesh().mode() == v1::MESH_MODE_FL_HSDP;
}

std::string MeshModeName(v1::MeshMode mode) {
  switch (mode) {
    case v1::MESH_MODE_FSDP:
      return "fsdp";
    case v1::MESH_MODE_HSDP:
      return "hsdp";
    case v1::MESH_MODE_FL_FSDP:
      return "fl+fsdp";
    case v1::MESH_MODE_FL_HSDP:
      return "fl+hsdp";
    default:
      return "";
  }
}

}  // namespace fedshard
