// How a config.json describes rotary embeddings: `rope_theta` and `rope_scaling` beside each other,
// or, as newer writers do, both within `rope_parameters`. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "common/model_config.h"

namespace fedshard {

// Fills in model.rope_theta and model.rope_scaling. INVALID_ARGUMENT names the field
// ("rope_scaling.factor"): kinds of scaling other than default, linear and llama3, what these need
// and is missing, what they do not know, and values that contradict each other.
absl::Status ParseRope(const nlohmann::json& config, ModelConfig& model);

}  // namespace fedshard
