#include "cli/job_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "cli/job_sections.h"
#include "cli/quantity.h"
#include "cli/yaml_section.h"
#include "common/duration.h"
#include "common/spec/model_config_json.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/data/token_file.h"

namespace fedshard::cli {
namespace {

constexpr uintmax_t kMaxFileBytes = 1 << 20;

// Reads one job file into a spec.
class Reader {
 public:
  Reader(const std::string& path, YamlReport& report)
      : folder_(std::filesystem::absolute(path).parent_path()), report_(report) {}

  v1::JobSpec Read(const YAML::Node& root) {
    YamlSection top(root, "", report_);
    if (const auto name = top.Text("name", true)) spec_.set_id(*name);
    ReadModel(top.Section("model", true));
    ReadData(top.Section("data", true));
    ReadMesh(top.Section("mesh", true));
    ReadFederation(top.Section("federation"), *spec_.mutable_federation());
    ReadResources(top.Section("resources"));
    ReadEvaluation(top.Section("evaluation"));
    if (top.Has("checkpoint")) {
      ReadCheckpoint(top.Section("checkpoint"), folder_, spec_.model().config_json(),
                     *spec_.mutable_checkpoint());
    }
    ReadTraining(top.Section("training", true));  // Needs the others for tokens per step.
    top.Finish();
    return spec_;
  }

 private:
  // YamlSection is passed by value: a handle.
  void ReadModel(YamlSection section) {
    v1::ModelSpec& model = *spec_.mutable_model();
    model.set_init(v1::MODEL_INIT_RANDOM);
    if (const auto seed = section.Integer("seed")) model.set_seed(static_cast<uint64_t>(*seed));
    const std::string init = section.Text("init").value_or("random");
    if (init.empty()) {
      section.Bad("init", "is empty");
    } else if (init != "random") {
      model.set_init(v1::MODEL_INIT_PRETRAINED);
      model.set_init_directory(Absolute(init));
      if (section.Has("config")) {
        section.Text("config");
        section.Bad("config", "is not wanted beside a model folder, which has its own config.json");
      }
      ReadConfig(section, "init", model.init_directory() + "/config.json");
    } else if (const auto config = Path(section, "config", true)) {
      ReadConfig(section, "config", *config);
    }
    section.Finish();
  }

  void ReadConfig(YamlSection& section, const std::string& key, const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) {
      section.Bad(key, absl::StrCat(path, ": cannot be read"));
    } else if (const auto parsed = ParseModelConfig(text.str()); !parsed.ok()) {
      section.Bad(key, absl::StrCat(path, ": ", parsed.status().message()));
    } else {
      spec_.mutable_model()->set_config_json(text.str());
    }
  }

  void ReadData(YamlSection section) {
    v1::DataSpec& data = *spec_.mutable_data();
    if (const auto path = Path(section, "train", true)) data.set_train(*path);
    if (const auto path = Path(section, "validation")) data.set_validation(*path);
    data.set_sequence_length(section.Integer("sequence_length").value_or(1024));
    data.set_seed(static_cast<uint64_t>(section.Integer("seed").value_or(0)));
    data.set_order(section.Choice("order", {"shuffled", "sequential"}).value_or(0) == 0
                       ? v1::SAMPLE_ORDER_SHUFFLED
                       : v1::SAMPLE_ORDER_SEQUENTIAL);
    section.Finish();
  }

  void ReadMesh(YamlSection section) {
    v1::MeshSpec& mesh = *spec_.mutable_mesh();
    if (!section.Has("mode")) section.Text("mode", true);
    const auto mode = section.Choice("mode", {"fsdp", "hsdp", "fl+fsdp", "fl+hsdp"});
    if (mode) mesh.set_mode(static_cast<v1::MeshMode>(*mode + 1));
    mesh.set_federation_groups(ReadInt32(section, "federation_groups", 1));
    mesh.set_replicas(ReadInt32(section, "replicas", 1));
    mesh.set_shards(ReadInt32(section, "shards", 1));
    section.Finish();
  }

  void ReadTraining(YamlSection section) {
    v1::TrainingSpec& training = *spec_.mutable_training();
    training.set_micro_batch(ReadInt32(section, "micro_batch", 1));
    training.set_accumulation(ReadInt32(section, "accumulation", 1));
    training.set_check_replicas_every(ReadInt32(section, "check_replicas_every", 0));
    const auto steps = Count(section, "steps"), tokens = Count(section, "tokens");
    const int64_t per_step = TokensPerStep(spec_);
    if (section.Has("steps") == section.Has("tokens")) {
      report_.ErrorAt("training", "training: give either steps or tokens");
    }
    if (steps) training.set_steps(*steps);
    if (tokens && per_step > 0) {
      const v1::ResumePoint& resume = spec_.checkpoint().resume();
      const int64_t left = std::max<int64_t>(0, *tokens - resume.tokens());
      training.set_steps(resume.step() + left / per_step + (left % per_step > 0 ? 1 : 0));
    }
    ReadStepOptions(section, training);
    ReadOptimizer(section.Section("optimizer"));
    ReadSchedule(section.Section("schedule"));
    section.Finish();
  }

  void ReadOptimizer(YamlSection section) {
    v1::OptimizerSpec& optimizer = *spec_.mutable_training()->mutable_optimizer();
    const bool adamw = section.Choice("type", {"adamw", "sgd"}).value_or(0) == 0;
    optimizer.set_type(adamw ? v1::OPTIMIZER_TYPE_ADAMW : v1::OPTIMIZER_TYPE_SGD);
    optimizer.set_learning_rate(section.Number("learning_rate").value_or(adamw ? 3e-4 : 0.1));
    optimizer.set_weight_decay(section.Number("weight_decay").value_or(adamw ? 0.1 : 0));
    optimizer.set_clip(section.Number("clip").value_or(1.0));
    optimizer.set_moments(section.Choice("moments", {"fp32", "bf16"}).value_or(0) == 0
                              ? v1::PRECISION_FP32
                              : v1::PRECISION_BF16);
    if (adamw) {
      const auto betas = section.Numbers("betas", 2).value_or(std::vector<double>{0.9, 0.95});
      optimizer.set_beta1(betas[0]);
      optimizer.set_beta2(betas[1]);
      optimizer.set_eps(section.Number("eps").value_or(1e-8));
    } else {
      optimizer.set_momentum(section.Number("momentum").value_or(0));
    }
    section.Finish();
  }

  void ReadSchedule(YamlSection section) {
    v1::ScheduleSpec& schedule = *spec_.mutable_training()->mutable_schedule();
    const bool cosine = section.Choice("type", {"constant", "cosine"}).value_or(0) == 1;
    schedule.set_type(cosine ? v1::SCHEDULE_TYPE_COSINE : v1::SCHEDULE_TYPE_CONSTANT);
    if (cosine) {
      schedule.set_final_ratio(section.Number("final_ratio").value_or(0.1));
      schedule.set_warmup_tokens(WarmupTokens(section));
    }
    section.Finish();
  }

  int64_t WarmupTokens(YamlSection& section) {
    const auto text = section.Text("warmup_tokens");
    if (!text) return 0;
    if (const auto part = ParsePercentage(*text)) {
      return std::llround(*part * static_cast<double>(TotalTokens(spec_)));
    }
    if (const auto count = ParseCount(*text)) return *count;
    section.Bad("warmup_tokens", "must be a number of tokens (2M) or a part of all (5%)");
    return 0;
  }

  void ReadEvaluation(YamlSection section) {
    v1::EvaluationSpec& evaluation = *spec_.mutable_evaluation();
    const bool has_validation = !spec_.data().validation().empty();
    evaluation.set_every_rounds(ReadInt32(section, "every_rounds", 0));
    evaluation.set_sequences(ReadInt32(section, "sequences", has_validation ? 64 : 0));
    if (section.Has("sample")) {
      YamlSection sample = section.Section("sample");
      v1::SampleSpec& out = *evaluation.mutable_sample();
      for (const char c : sample.Text("prompt").value_or("\n")) {
        out.add_prompt_tokens(static_cast<unsigned char>(c));
      }
      out.set_tokens(ReadInt32(sample, "tokens", 200));
      out.set_temperature(sample.Number("temperature").value_or(0.8));
      out.set_seed(static_cast<uint64_t>(sample.Integer("seed").value_or(0)));
      sample.Finish();
    }
    section.Finish();
  }

  void ReadResources(YamlSection section) {
    v1::ResourceSpec& resources = *spec_.mutable_resources();
    resources.set_device(section.Choice("device", {"cpu", "cuda"}).value_or(0) == 0
                             ? v1::DEVICE_CPU
                             : v1::DEVICE_CUDA);
    resources.set_threads_per_rank(ReadInt32(section, "threads_per_rank", 1));
    resources.set_collective_timeout_seconds(60);
    if (const auto text = section.Text("collective_timeout")) {
      if (const auto us = ParseDuration(*text); us.ok()) {
        resources.set_collective_timeout_seconds(static_cast<int32_t>(*us / 1'000'000));
      } else {
        section.Bad("collective_timeout", std::string(us.status().message()));
      }
    }
    section.Finish();
  }

  std::optional<int64_t> Count(YamlSection& section, const std::string& key) {
    const auto text = section.Text(key);
    if (!text) return std::nullopt;
    const auto count = ParseCount(*text);
    if (!count) section.Bad(key, "must be a whole number, like 200, 10K or 2M");
    return count;
  }

  // A path relative to the job file's folder; an empty one would be that folder.
  std::optional<std::string> Path(YamlSection& section, const std::string& key,
                                  bool required = false) const {
    const auto path = section.Text(key, required);
    if (!path || !path->empty()) return path ? std::optional(Absolute(*path)) : std::nullopt;
    section.Bad(key, "is empty");
    return std::nullopt;
  }

  std::string Absolute(const std::string& path) const {
    return (folder_ / path).lexically_normal().string();
  }

  std::filesystem::path folder_;
  YamlReport& report_;
  v1::JobSpec spec_;
};

// Fields of the specification that job files write differently.
std::string FieldInFile(const std::string& field) {
  if (field == "id") return "name";
  if (field == "training.optimizer.beta1" || field == "training.optimizer.beta2") {
    return "training.optimizer.betas";
  }
  if (field == "federation.outer_optimizer.beta1" || field == "federation.outer_optimizer.beta2") {
    return "federation.outer_optimizer.betas";
  }
  if (field == "federation.chunk_bytes") return "federation.chunk";
  return field;
}

// The same error, behind the field that names the file.
absl::Status Of(const std::string& field, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

absl::Status CheckTokens(const std::string& path, int64_t vocab_size, int64_t sample_tokens) {
  ASSIGN_OR_RETURN(const auto file, data::TokenFile::Open(path, /*verify=*/true));
  return file->CheckFits(vocab_size, sample_tokens);
}

}  // namespace

absl::StatusOr<v1::JobSpec> ReadJobFile(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (bytes > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", bytes, " bytes; a job file has at most ", kMaxFileBytes));
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return ParseJobFile(text.str(), path);
}

absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& path) {
  YamlReport report(path);
  v1::JobSpec spec;
  try {
    // Aliases share nodes and the parser bounds depth, so neither bombs nor deep nesting cost more
    // than the text.
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      report.Error(documents[1].Mark(), "a job file holds one document");
    } else {
      spec = Reader(path, report).Read(documents.empty() ? YAML::Node() : documents[0]);
    }
  } catch (const YAML::Exception& error) {
    report.Error(error.mark, error.msg);
  }
  if (report.ok()) {
    for (const v1::FieldViolation& violation : ValidateSpec(spec)) {
      const std::string field = FieldInFile(violation.field());
      report.ErrorAt(field, absl::StrCat(field, ": ", violation.description()));
    }
  }
  if (!report.ok()) return absl::InvalidArgumentError(report.Text());
  return spec;
}

absl::Status CheckData(const v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(const ModelConfig model, ParseModelConfig(spec.model().config_json()));
  if (spec.model().init() == v1::MODEL_INIT_PRETRAINED) {
    RETURN_IF_ERROR(Of("model.init",
                       checkpoint::HfWeights::Open(spec.model().init_directory(), model).status()));
  }
  const int64_t sample_tokens = spec.data().sequence_length() + 1;
  RETURN_IF_ERROR(
      Of("data.train", CheckTokens(spec.data().train(), model.vocab_size, sample_tokens)));
  if (spec.evaluation().sequences() > 0) {
    RETURN_IF_ERROR(Of("data.validation",
                       CheckTokens(spec.data().validation(), model.vocab_size, sample_tokens)));
  }
  return absl::OkStatus();
}

}  // namespace fedshard::cli
