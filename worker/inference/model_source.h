// Finds the model that a path means: a checkpoint, the newest checkpoint of a folder, or a Hugging
// Face model folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_config.h"
#include "worker/checkpoint/parameter_source.h"
#include "worker/checkpoint/reader.h"

namespace fedshard::inference {

// One thread per object.
struct ModelSource {
  std::string path;  // Of the checkpoint or model folder itself, absolute.
  ModelConfig config;
  std::vector<int64_t> stop_tokens;                      // eos_token_id of config.json.
  std::optional<int64_t> step;                           // Of a checkpoint.
  std::unique_ptr<checkpoint::CheckpointReader> reader;  // When it is one.
  std::unique_ptr<checkpoint::ParameterSource> parameters;
};

// Reads headers only. NOT_FOUND: no such path; INVALID_ARGUMENT: a folder that holds no model, or a
// model that is not supported (names the field); DATA_LOSS: a damaged checkpoint. In a folder of
// checkpoints the newest undamaged one is taken; `skipped` gets the errors of newer ones.
absl::StatusOr<ModelSource> OpenModel(const std::string& path, std::vector<std::string>& skipped);

}  // namespace fedshard::inference
