#include "worker/checkpoint/hf_export.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/hf_names.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::checkpoint {
namespace {

using engine::ParameterSpec;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int64_t kCopyElements = 1 << 20;
constexpr int64_t kMaxTokenizerBytes = 1 << 30;
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json",
    "tokenizer.model", "added_tokens.json",     "vocab.json",
    "merges.txt",      "chat_template.jinja"};
constexpr char kGenerationConfig[] = "generation_config.json";

// A folder beside the final one, gone with everything in it unless it gets that name.
class PartialFolder {
 public:
  explicit PartialFolder(const std::string& final_path) : final_path_(final_path) {
    char suffix[32];
    std::random_device random;
    snprintf(suffix, sizeof suffix, ".partial-%08x%08x", random(), random());
    path_ = final_path + suffix;
  }
  ~PartialFolder() {
    if (!published_) RemoveTree(path_).IgnoreError();
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  absl::Status Make() { return MakeFolder(path_); }
  absl::Status Publish() {
    RETURN_IF_ERROR(SyncFolder(path_));
    RETURN_IF_ERROR(Rename(path_, final_path_));
    published_ = true;
    return SyncFolder(fs::path(final_path_).parent_path().string());
  }

 private:
  const std::string final_path_;
  std::string path_;
  bool published_ = false;
};

// Absolute, without "." and a slash at its end, so that it has a parent and a name.
absl::StatusOr<std::string> TargetPath(const std::string& directory) {
  if (directory.empty()) return absl::InvalidArgumentError("the folder has no name");
  std::error_code error;
  fs::path path = fs::absolute(directory, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return path.string();
  if (fs::is_directory(path, error) && fs::is_empty(path, error) && !error) return path.string();
  return absl::AlreadyExistsError(
      absl::StrCat(directory, ": is there already and is no empty folder"));
}

absl::StatusOr<std::string> ConfigText(const std::string& config_json, DType dtype) {
  ordered_json config = ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError("config.json is not a JSON object");
  // A loader converts to what stands here: a wider type would be lost, a narrower one wasted.
  const char* name = dtype == DType::kF32   ? "float32"
                     : dtype == DType::kF16 ? "float16"
                                            : "bfloat16";
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name;
  if (config.contains("dtype")) config.erase("torch_dtype");
  if (!config.contains("model_type") || !config["model_type"].is_string()) {
    const bool mistral = config.contains("architectures") &&
                         config["architectures"] == ordered_json::array({"MistralForCausalLM"});
    config["model_type"] = mistral ? "mistral" : "llama";
  }
  if (!config.contains("architectures") || config["architectures"].is_null()) {
    const bool mistral = config["model_type"] == "mistral";
    config["architectures"] = {mistral ? "MistralForCausalLM" : "LlamaForCausalLM"};
  }
  return config.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::vector<ParameterSpec>> ParametersOf(const ModelConfig& model) {
  std::vector<ParameterSpec> parameters;
  try {
    const engine::ModelLayout layout(model, 1);
    for (const engine::UnitLayout& unit : layout.units()) {
      parameters.insert(parameters.end(), unit.parameters.begin(), unit.parameters.end());
    }
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return parameters;
}

struct WeightFile {
  std::string name;
  std::vector<ParameterSpec> parameters;
};

// In the model's order, each file filled up to the limit.
std::vector<WeightFile> Distribute(const std::vector<ParameterSpec>& parameters, int64_t width,
                                   int64_t max_file_bytes) {
  std::vector<WeightFile> files(1);
  int64_t bytes = 0;
  for (const ParameterSpec& parameter : parameters) {
    const int64_t size = parameter.size * width;
    if (!files.back().parameters.empty() && size > max_file_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().parameters.push_back(parameter);
    bytes += size;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char name[80];
    snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = files.size() == 1 ? kWeightsName : name;
  }
  return files;
}

absl::Status WriteWeights(const ParameterSource& source, const WeightFile& file,
                          const std::string& path, const ExportOptions& options) {
  std::vector<StoredTensor> tensors;
  for (const ParameterSpec& parameter : file.parameters) {
    tensors.push_back({parameter.name, options.dtype, parameter.shape, 0, 0});
  }
  // Some loaders ask what wrote the file.
  ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(path, tensors, {{"format", "pt"}}));
  std::vector<float> values;
  for (const ParameterSpec& parameter : file.parameters) {
    for (int64_t begin = 0; begin < parameter.size; begin += kCopyElements) {
      if (options.interrupted && options.interrupted()) return absl::CancelledError("interrupted");
      const int64_t count = std::min(kCopyElements, parameter.size - begin);
      values.resize(static_cast<size_t>(count));
      RETURN_IF_ERROR(source.Read(parameter.name, begin, count, values.data()));
      RETURN_IF_ERROR(writer->WriteFloats(values.data(), count));
    }
  }
  return writer->Finish();
}

std::string IndexText(const std::vector<WeightFile>& files, int64_t bytes, int64_t parameters) {
  ordered_json index;
  index["metadata"] = {{"total_parameters", parameters}, {"total_size", bytes}};
  for (const WeightFile& file : files) {
    for (const ParameterSpec& parameter : file.parameters) {
      index["weight_map"][parameter.name] = file.name;
    }
  }
  return index.dump(2) + "\n";
}

absl::StatusOr<std::vector<std::string>> TokenizerFiles(const std::string& folder) {
  std::vector<std::string> names;
  for (const char* name : kTokenizerFiles) {
    if (Exists(folder + "/" + name)) names.push_back(name);
  }
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": has no tokenizer (tokenizer.json, tokenizer.model, ...)"));
  }
  if (Exists(absl::StrCat(folder, "/", kGenerationConfig))) names.push_back(kGenerationConfig);
  return names;
}

}  // namespace

absl::StatusOr<ExportSummary> ExportHuggingFace(const ParameterSource& source,
                                                const ModelConfig& model,
                                                const std::string& config_json,
                                                const ExportOptions& options) {
  if (options.max_file_bytes <= 0) {
    return absl::InvalidArgumentError("the size of a file must be above 0");
  }
  ASSIGN_OR_RETURN(const std::string target, TargetPath(options.directory));
  ASSIGN_OR_RETURN(const std::string config, ConfigText(config_json, options.dtype));
  ASSIGN_OR_RETURN(const std::vector<ParameterSpec> parameters, ParametersOf(model));
  std::vector<std::string> copies;
  if (!options.tokenizer_directory.empty()) {
    ASSIGN_OR_RETURN(copies, TokenizerFiles(options.tokenizer_directory));
  }
  ExportSummary summary;
  for (const ParameterSpec& parameter : parameters) summary.parameters += parameter.size;
  const int64_t width = BytesOf(options.dtype);
  const std::vector<WeightFile> files = Distribute(parameters, width, options.max_file_bytes);

  PartialFolder folder(target);
  RETURN_IF_ERROR(folder.Make());
  for (const WeightFile& file : files) {
    RETURN_IF_ERROR(WriteWeights(source, file, folder.Path(file.name), options));
    summary.files.push_back(file.name);
  }
  const auto write = [&](const std::string& name, const std::string& text) {
    summary.files.push_back(name);
    return WriteDurably(folder.Path(name), text);
  };
  if (files.size() > 1) {
    RETURN_IF_ERROR(
        write(kIndexName, IndexText(files, summary.parameters * width, summary.parameters)));
  }
  RETURN_IF_ERROR(write(kConfigName, config));
  for (const std::string& name : copies) {
    ASSIGN_OR_RETURN(const std::string text,
                     ReadWholeFile(options.tokenizer_directory + "/" + name, kMaxTokenizerBytes));
    RETURN_IF_ERROR(write(name, text));
  }
  for (const std::string& name : summary.files) {
    std::error_code error;
    const auto bytes = fs::file_size(folder.Path(name), error);
    if (!error) summary.bytes += static_cast<int64_t>(bytes);
  }
  RETURN_IF_ERROR(folder.Publish());
  return summary;
}

}  // namespace fedshard::checkpoint
