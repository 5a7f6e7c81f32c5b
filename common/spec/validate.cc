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

template <typename Enum>
void CheckKnown(const std::string& field, Enum value, bool (*known)(int), const char* allowed,
                Violations& out) {
  if (!known(value)) out.Add(field, absl::StrCat("must be ", allowed));
}

void CheckStepOptions(const v1::TrainingSpec& training, Violations& out) {
  const char* precisions = "fp32 or bf16";
  const std::pair<const char*, v1::Precision> all[] = {
      {"training.precision", training.precision()},
      {"training.gather_precision", training.gather_precision()},
      {"training.reduce_precision", training.reduce_precision()},
      {"training.optimizer.moments", training.optimizer().moments()}};
  for (const auto& [field, value] : all) {
    CheckKnown(field, value, v1::Precision_IsValid, precisions, out);
  }
  if (training.force_precision() && training.precision() != v1::PRECISION_BF16) {
    out.Add("training.force_precision", "needs training.precision bf16");
  }
  CheckKnown("training.recompute", training.recompute(), v1::Recompute_IsValid,
             "none, block or selective", out);
  CheckKnown("training.accumulate", training.accumulate(), v1::Accumulate_IsValid,
             "reduce or local", out);
  out.Range("training.non_finite_limit", training.non_finite_limit(), 0, INT32_MAX);
}

void CheckFederation(const v1::JobSpec& spec, Violations& out) {
  const v1::FederationSpec& federation = spec.federation();
  out.Range("federation.every_steps", federation.every_steps(), 1, INT32_MAX);
  out.Range("federation.chunk_bytes", federation.chunk_bytes(), 4096, int64_t{1} << 34);
  if (federation.weighting() != v1::WEIGHTING_TOKENS &&
      federation.weighting() != v1::WEIGHTING_EQUAL) {
    out.Add("federation.weighting", "must be tokens or equal");
  }
  const v1::OuterOptimizerSpec& outer = federation.outer_optimizer();
  const std::string at = "federation.outer_optimizer.";
  CheckKnown(at + "type", outer.type(), v1::OuterOptimizerType_IsValid,
             "none, momentum, nesterov or adam", out);
  CheckKnown("federation.optimizer_state", federation.optimizer_state(), v1::MomentsPolicy_IsValid,
             "local, average or reset", out);
  CheckKnown("federation.compression", federation.compression(), v1::Compression_IsValid,
             "none, bf16 or int8", out);
  const bool has_outer = outer.type() > v1::OUTER_OPTIMIZER_TYPE_NONE;
  if (has_outer) {
    out.Real(at + "learning_rate", outer.learning_rate(), 0, 1e6);
    if (outer.type() == v1::OUTER_OPTIMIZER_TYPE_ADAM) {
      out.Real(at + "beta1", outer.beta1(), 0, 1, true);
      out.Real(at + "beta2", outer.beta2(), 0, 1, true);
      // Elements that no group changes must stay: without it they would become 0 / 0.
      out.Real(at + "eps", outer.eps(), 1e-30, 1);
    } else {
      out.Real(at + "momentum", outer.momentum(), 0, 1, true);
    }
  }
  out.Range("federation.overlap_steps", federation.overlap_steps(), 0,
            std::max(0, federation.every_steps() - 1));
  if (Averages(spec)) return;
  const std::string rule = absl::StrCat("has no meaning in mode ", MeshModeName(spec.mesh().mode()),
                                        ", which does not average");
  if (has_outer) out.Add("federation.outer_optimizer", rule);
  if (federation.optimizer_state() > v1::MOMENTS_POLICY_LOCAL) {
    out.Add("federation.optimizer_state", rule);
  }
  if (federation.compression() > v1::COMPRESSION_NONE) out.Add("federation.compression", rule);
  if (federation.overlap_steps() > 0) out.Add("federation.overlap_steps", rule);
}

void CheckCheckpoint(const v1::JobSpec& spec, Violations& out) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  if (!checkpoint.directory().empty() && checkpoint.directory()[0] != '/') {
    out.Add("checkpoint.directory", "must be an absolute path");
  }
  out.Range("checkpoint.every_rounds", checkpoint.every_rounds(), 0, INT32_MAX);
  out.Range("checkpoint.keep", checkpoint.keep(), 0, INT32_MAX);
  if (checkpoint.directory().empty() && checkpoint.every_rounds() > 0) {
    out.Add("checkpoint.directory", "is missing, but checkpoint.every_rounds is not 0");
  }
  if (!checkpoint.has_resume()) return;
  const v1::ResumePoint& resume = checkpoint.resume();
  if (resume.path().empty() || resume.path()[0] != '/') {
    out.Add("checkpoint.resume", "must be the absolute path of a checkpoint");
  }
  const int64_t most = int64_t{1} << 62;
  out.Range("checkpoint.resume.step", resume.step(), 0, kMaxSteps);
  out.Range("checkpoint.resume.tokens", resume.tokens(), 0, most);
  out.Range("checkpoint.resume.next_sample", resume.next_sample(), 0, most);
  if (resume.step() >= spec.training().steps()) {
    out.Add("checkpoint.resume", absl::StrCat("is at step ", resume.step(), " of training.steps = ",
                                              spec.training().steps(), ": nothing is left to do"));
  }
}

void CheckTraining(const v1::TrainingSpec& training, Violations& out) {
  out.Range("training.steps", training.steps(), 1, kMaxSteps);
  out.Range("training.micro_batch", training.micro_batch(), 1, kMaxBatch);
  out.Range("training.accumulation", training.accumulation(), 1, kMaxBatch);
  out.Range("training.check_replicas_every", training.check_replicas_every(), 0, INT32_MAX);
  CheckOptimizer(training.optimizer(), out);
  CheckStepOptions(training, out);
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
  const std::string& directory = spec.model().init_directory();
  if (spec.model().init() == v1::MODEL_INIT_PRETRAINED) {
    if (directory.empty() || directory[0] != '/') {
      out.Add("model.init", "must be the absolute path of a model folder");
    }
  } else if (spec.model().init() != v1::MODEL_INIT_RANDOM) {
    out.Add("model.init", "must be random or a model folder");
  } else if (!directory.empty()) {
    out.Add("model.init", "is random, but a model folder is given");
  }
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
  CheckFederation(spec, out);
  CheckCheckpoint(spec, out);
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
    if (tokens > 4e18) out.Add("training.steps", "gives more than 4e18 tokens");
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
  // Before a resume point steps may have had another number of tokens.
  const v1::ResumePoint& resume = spec.checkpoint().resume();
  const int64_t left = std::max<int64_t>(0, spec.training().steps() - resume.step());
  int64_t total = 0;
  return __builtin_add_overflow(resume.tokens(), Product({TokensPerStep(spec), left}), &total)
             ? INT64_MAX
             : total;
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
