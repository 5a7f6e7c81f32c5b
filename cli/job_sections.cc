#include "cli/job_sections.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/quantity.h"
#include "common/log.h"
#include "common/spec/model_config_json.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/shard_description.h"

namespace fedshard::cli {
namespace {

v1::Precision ReadPrecision(YamlSection& section, const std::string& key) {
  return section.Choice(key, {"fp32", "bf16"}).value_or(0) == 0 ? v1::PRECISION_FP32
                                                                : v1::PRECISION_BF16;
}

void ReadOuterOptimizer(YamlSection section, v1::OuterOptimizerSpec& out) {
  const int type = section.Choice("type", {"none", "momentum", "nesterov", "adam"}).value_or(0);
  out.set_type(static_cast<v1::OuterOptimizerType>(type + 1));
  if (out.type() == v1::OUTER_OPTIMIZER_TYPE_ADAM) {
    out.set_learning_rate(section.Number("learning_rate").value_or(1e-3));
    const auto betas = section.Numbers("betas", 2).value_or(std::vector<double>{0.9, 0.99});
    out.set_beta1(betas[0]);
    out.set_beta2(betas[1]);
    out.set_eps(section.Number("eps").value_or(1e-3));
  } else if (out.type() != v1::OUTER_OPTIMIZER_TYPE_NONE) {
    // What DiLoCo found best.
    out.set_learning_rate(section.Number("learning_rate").value_or(0.7));
    out.set_momentum(section.Number("momentum").value_or(0.9));
  }
  section.Finish();
}

// Takes the checkpoint in folder `path` as the job's beginning; what is wrong with that, or "".
std::string ResumeFrom(const std::string& path, const std::string& model_config,
                       v1::CheckpointSpec& out) {
  const auto reader = checkpoint::CheckpointReader::Open(path);
  if (!reader.ok()) return std::string(reader.status().message());
  if (const absl::Status bad = (*reader)->Verify(); !bad.ok()) return std::string(bad.message());
  const checkpoint::Manifest& manifest = (*reader)->manifest();
  // A job file whose model cannot be read has been reported already.
  if (const auto model = ParseModelConfig(model_config); model.ok()) {
    const absl::Status fits =
        checkpoint::CheckModel(manifest, engine::ModelLayout(*model, 1), "parameters");
    if (!fits.ok()) return absl::StrCat(path, ": ", fits.message());
  }
  v1::ResumePoint& resume = *out.mutable_resume();
  resume.set_path(path);
  resume.set_step(manifest.step);
  resume.set_tokens(manifest.tokens);
  resume.set_next_sample(manifest.next_sample);
  return "";
}

// The same with the newest checkpoint of the job's directory that is whole, if there is any.
std::string ResumeFromNewest(const std::string& model_config, v1::CheckpointSpec& out) {
  const auto newest = checkpoint::NewestGood(out.directory());
  if (absl::IsNotFound(newest.status())) return "";
  if (!newest.ok()) return std::string(newest.status().message());
  for (const std::string& skipped : newest->skipped) {
    LogWarning(absl::StrCat("not resumed from: ", skipped));
  }
  return newest->entry ? ResumeFrom(newest->entry->path, model_config, out) : "";
}

// A directory with checkpoints is another run's, unless this one goes on from there.
std::string RefuseUsed(const std::string& directory) {
  const auto found = checkpoint::ListCheckpoints(directory);
  if (!found.ok() || found->empty()) return "";
  return absl::StrCat("never, but ", directory, " holds checkpoints, up to step ",
                      found->front().step, "; use resume: latest, or another directory");
}

}  // namespace

int32_t ReadInt32(YamlSection& section, const std::string& key, int32_t fallback) {
  const auto value = section.Integer(key);
  if (!value) return fallback;
  if (*value < INT32_MIN || *value > INT32_MAX) {
    section.Bad(key, absl::StrCat(*value, " is out of range"));
    return fallback;
  }
  return static_cast<int32_t>(*value);
}

void ReadStepOptions(YamlSection& training, v1::TrainingSpec& out) {
  out.set_precision(ReadPrecision(training, "precision"));
  if (training.Has("gather_precision")) {
    out.set_gather_precision(ReadPrecision(training, "gather_precision"));
  }
  out.set_reduce_precision(ReadPrecision(training, "reduce_precision"));
  out.set_force_precision(training.Choice("force_precision", {"false", "true"}).value_or(0) == 1);
  const int recompute = training.Choice("recompute", {"none", "block", "selective"}).value_or(0);
  out.set_recompute(static_cast<v1::Recompute>(recompute + 1));
  const int accumulate = training.Choice("accumulate", {"reduce", "local"}).value_or(0);
  out.set_accumulate(static_cast<v1::Accumulate>(accumulate + 1));
  out.set_non_finite_limit(ReadInt32(training, "non_finite_limit", 0));
}

void ReadFederation(YamlSection section, v1::FederationSpec& out) {
  out.set_every_steps(ReadInt32(section, "every_steps", 8));
  out.set_weighting(section.Choice("weighting", {"tokens", "equal"}).value_or(0) == 0
                        ? v1::WEIGHTING_TOKENS
                        : v1::WEIGHTING_EQUAL);
  out.set_chunk_bytes(4 << 20);
  if (const auto text = section.Text("chunk")) {
    if (const auto bytes = ParseBytes(*text)) {
      out.set_chunk_bytes(*bytes);
    } else {
      section.Bad("chunk", "must be a size like 4MiB");
    }
  }
  if (section.Has("outer_optimizer")) {
    ReadOuterOptimizer(section.Section("outer_optimizer"), *out.mutable_outer_optimizer());
  }
  const int moments = section.Choice("optimizer_state", {"local", "average", "reset"}).value_or(0);
  out.set_optimizer_state(static_cast<v1::MomentsPolicy>(moments + 1));
  const int compression = section.Choice("compression", {"none", "bf16", "int8"}).value_or(0);
  out.set_compression(static_cast<v1::Compression>(compression + 1));
  out.set_overlap_steps(ReadInt32(section, "overlap_steps", 0));
  section.Finish();
}

void ReadCheckpoint(YamlSection section, const std::filesystem::path& folder,
                    const std::string& model_config, v1::CheckpointSpec& out) {
  const auto absolute = [&](const std::string& path) {
    return (folder / path).lexically_normal().string();
  };
  if (const auto directory = section.Text("directory", true)) {
    // Joined with the job file's folder an empty name would mean that folder itself.
    if (directory->empty()) section.Bad("directory", "is empty");
    out.set_directory(absolute(*directory));
  }
  out.set_every_rounds(ReadInt32(section, "every_rounds", 0));
  out.set_keep(ReadInt32(section, "keep", 3));
  const std::string resume = section.Text("resume").value_or("latest");
  std::string problem;
  if (resume == "never") {
    problem = RefuseUsed(out.directory());
  } else if (resume == "latest") {
    problem = ResumeFromNewest(model_config, out);
  } else {
    problem = ResumeFrom(absolute(resume), model_config, out);
  }
  if (!problem.empty()) section.Bad("resume", problem);
  section.Finish();
}

}  // namespace fedshard::cli
