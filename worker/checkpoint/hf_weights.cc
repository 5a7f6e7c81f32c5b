#include "worker/checkpoint/hf_weights.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/hf_names.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kMaxIndexBytes = 64 << 20;

// Tensor name -> file name, of an index's text.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(const std::string& path,
                                                              const std::string& text) {
  const json index = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": weight_map is missing or no object"));
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // A plain name: an index must not lead out of its folder.
    if (name.empty() || name == "." || name == ".." || absl::StrContains(name, "/")) {
      return absl::DataLossError(
          absl::StrCat(path, ": tensor \"", tensor.substr(0, 200), "\": is in no file's name"));
    }
    files[tensor] = name;
  }
  return files;
}

// Buffers that follow from the configuration, and a head that the embedding stands in for.
bool MayBeIgnored(const std::string& tensor, const ModelConfig& model) {
  if (absl::EndsWith(tensor, ".rotary_emb.inv_freq")) return true;
  return model.tie_word_embeddings && tensor == "lm_head.weight";
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

absl::StatusOr<std::unique_ptr<HfWeights>> HfWeights::Open(const std::string& directory,
                                                           const ModelConfig& model) {
  std::unique_ptr<HfWeights> weights(new HfWeights);
  weights->directory_ = directory;
  std::error_code ignored;
  const std::filesystem::path folder(directory);
  if (std::filesystem::exists(folder / kWeightsName, ignored)) {
    RETURN_IF_ERROR(weights->OpenFile(kWeightsName));
  } else if (std::filesystem::exists(folder / kIndexName, ignored)) {
    RETURN_IF_ERROR(weights->OpenIndexed(folder / kIndexName));
  } else {
    return absl::NotFoundError(
        absl::StrCat(directory, ": has neither ", kWeightsName, " nor ", kIndexName));
  }
  RETURN_IF_ERROR(weights->CheckModel(model));
  return weights;
}

absl::Status HfWeights::OpenFile(const std::string& name) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> reader,
                   SafetensorsReader::Open(std::filesystem::path(directory_) / name));
  for (const auto& [tensor, stored] : reader->tensors()) {
    const auto [entry, added] = file_of_parameter_.emplace(tensor, reader.get());
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat(reader->path(), ": tensor \"", tensor,
                                                     "\" is in ", entry->second->path(), " too"));
    }
  }
  files_[name] = std::move(reader);
  return absl::OkStatus();
}

absl::Status HfWeights::OpenIndexed(const std::string& index) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(index, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const auto file_of_tensor, ParseIndex(index, text));
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of_tensor) names.insert(file);
  for (const std::string& name : names) RETURN_IF_ERROR(OpenFile(name));
  for (const auto& [tensor, file] : file_of_tensor) {
    const auto found = file_of_parameter_.find(tensor);
    if (found == file_of_parameter_.end() || found->second != files_[file].get()) {
      return absl::DataLossError(absl::StrCat(index, ": tensor \"", tensor, "\" is not in ", file));
    }
  }
  return absl::OkStatus();
}

absl::Status HfWeights::CheckModel(const ModelConfig& model) const {
  std::set<std::string> expected;
  try {
    const engine::ModelLayout layout(model, 1);
    for (const engine::UnitLayout& unit : layout.units()) {
      for (const engine::ParameterSpec& parameter : unit.parameters) {
        expected.insert(parameter.name);
        const auto found = file_of_parameter_.find(parameter.name);
        if (found == file_of_parameter_.end()) {
          return absl::InvalidArgumentError(absl::StrCat(
              directory_, ": has no tensor \"", parameter.name, "\", which config.json asks for"));
        }
        const auto& shape = found->second->tensors().at(parameter.name).shape;
        if (shape != parameter.shape) {
          return absl::InvalidArgumentError(absl::StrCat(
              found->second->path(), ": tensor \"", parameter.name, "\" is ", ShapeText(shape),
              ", but config.json makes it ", ShapeText(parameter.shape)));
        }
      }
    }
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(absl::StrCat(directory_, ": ", error.what()));
  }
  for (const auto& [tensor, file] : file_of_parameter_) {
    if (expected.count(tensor) > 0 || MayBeIgnored(tensor, model)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        file->path(), ": tensor \"", tensor.substr(0, 200),
        "\" is no part of the model that config.json describes, and cannot be left out"));
  }
  return absl::OkStatus();
}

absl::Status HfWeights::Read(const std::string& parameter, int64_t begin, int64_t count,
                             float* out) const {
  const auto found = file_of_parameter_.find(parameter);
  if (found == file_of_parameter_.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, ": has no tensor \"", parameter, "\""));
  }
  return found->second->ReadFloats(parameter, begin, count, out);
}

}  // namespace fedshard::checkpoint
