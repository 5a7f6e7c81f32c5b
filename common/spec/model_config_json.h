// Hugging Face config.json of a Llama-family model -> ModelConfig.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model_config.h"

namespace fedshard {

// INVALID_ARGUMENT names the field. Fields that would change the mathematics and are not supported
// (biases, sliding windows, other activations or kinds of rope scaling) are refused, never ignored;
// fields about files, tokenizers and generation are accepted.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json);

}  // namespace fedshard
