// Writes a model as a Hugging Face folder, which `transformers` loads: config.json, safetensors in
// one file or several with their index, and the tokenizer's files. Streams: memory stays at some
// megabytes for any model. Stateless; one thread per call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_config.h"
#include "worker/checkpoint/dtype.h"
#include "worker/checkpoint/parameter_source.h"

namespace fedshard::checkpoint {

struct ExportOptions {
  std::string directory;  // Made with its parents; may exist when it is empty.
  DType dtype = DType::kF32;
  // Of the tensors in one file; a tensor that alone is larger has a file of its own.
  int64_t max_file_bytes = 5'000'000'000;
  std::string tokenizer_directory;  // Its tokenizer and generation files are copied; empty = none.
  std::function<bool()> interrupted;  // Asked between chunks; empty = never.
};

struct ExportSummary {
  std::vector<std::string> files;  // Names in the folder: weights, then the others.
  int64_t parameters = 0;
  int64_t bytes = 0;  // Of all files.
};

// The folder appears whole, under its name, or not at all. config.json is `config_json` with the
// dtype that is written and, where it is missing, the type of the model.
// ALREADY_EXISTS: the folder is there and not empty, or is no folder. INVALID_ARGUMENT: no
// tokenizer in its folder, no limit above 0, garbled config. CANCELLED: interrupted. Else as the
// source and the disk say.
absl::StatusOr<ExportSummary> ExportHuggingFace(const ParameterSource& source,
                                                const ModelConfig& model,
                                                const std::string& config_json,
                                                const ExportOptions& options);

}  // namespace fedshard::checkpoint
