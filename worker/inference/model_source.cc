#include "worker/inference/model_source.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/spec/model_config_json.h"
#include "common/status_macros.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/shard_description.h"

namespace fedshard::inference {
namespace {

namespace fs = std::filesystem;

constexpr char kConfigName[] = "config.json";

// Text that was parsed as a model's configuration before.
std::vector<int64_t> StopTokens(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  const auto end = json.is_object() ? json.find("eos_token_id") : json.end();
  std::vector<int64_t> tokens;
  if (end == json.end()) return tokens;
  for (const auto& token : end->is_array() ? *end : nlohmann::json::array({*end})) {
    if (token.is_number_integer()) tokens.push_back(token.get<int64_t>());
  }
  return tokens;
}

absl::Status SetConfig(const std::string& where, const std::string& text, ModelSource& model) {
  const auto config = ParseModelConfig(text);
  if (!config.ok()) {
    return absl::Status(config.status().code(),
                        absl::StrCat(where, ": ", config.status().message()));
  }
  model.config = *config;
  model.stop_tokens = StopTokens(text);
  return absl::OkStatus();
}

absl::StatusOr<ModelSource> OpenCheckpoint(const std::string& path) {
  ModelSource model;
  model.path = path;
  ASSIGN_OR_RETURN(model.reader, checkpoint::CheckpointReader::Open(path));
  const checkpoint::Manifest& manifest = model.reader->manifest();
  model.step = manifest.step;
  RETURN_IF_ERROR(SetConfig(absl::StrCat(path, "/", checkpoint::kManifestName, ": model_config"),
                            manifest.model_config, model));
  const absl::Status whole = checkpoint::CheckModel(manifest, model.config, "parameters");
  if (!whole.ok()) {
    return absl::Status(whole.code(), absl::StrCat(path, ": ", whole.message()));
  }
  ASSIGN_OR_RETURN(model.parameters, model.reader->Source("parameters", 0));
  return model;
}

absl::StatusOr<ModelSource> OpenHuggingFace(const std::string& path) {
  ModelSource model;
  model.path = path;
  const std::string file = absl::StrCat(path, "/", kConfigName);
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) return absl::InvalidArgumentError(absl::StrCat(file, ": cannot be read"));
  RETURN_IF_ERROR(SetConfig(file, text, model));
  ASSIGN_OR_RETURN(model.parameters, checkpoint::HfWeights::Open(path, model.config));
  return model;
}

}  // namespace

absl::StatusOr<ModelSource> OpenModel(const std::string& path, std::vector<std::string>& skipped) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  }
  const std::string folder = fs::canonical(path, error).string();
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  if (fs::exists(absl::StrCat(folder, "/", checkpoint::kManifestName), error)) {
    return OpenCheckpoint(folder);
  }
  if (fs::exists(absl::StrCat(folder, "/", kConfigName), error)) return OpenHuggingFace(folder);
  const auto checkpoints = checkpoint::ListCheckpoints(folder);
  if (!checkpoints.ok() || checkpoints->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no checkpoint (", checkpoint::kManifestName,
                     "), no folder of checkpoints and no Hugging Face model (", kConfigName, ")"));
  }
  for (const checkpoint::CheckpointEntry& entry : *checkpoints) {
    absl::StatusOr<ModelSource> model = OpenCheckpoint(entry.path);
    if (model.ok()) return model;
    skipped.push_back(std::string(model.status().message()));
  }
  return absl::DataLossError(
      absl::StrCat(path, ": all of its ", checkpoints->size(), " checkpoints are damaged"));
}

}  // namespace fedshard::inference
