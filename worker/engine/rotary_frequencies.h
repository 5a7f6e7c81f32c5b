// How fast each pair of channels turns with the position: the frequencies of rotary embeddings,
// with the scaling that longer contexts need. Pure arithmetic without tensors.
#pragma once

#include <vector>

#include "common/model_config.h"

namespace fedshard::engine {

// Radians per position, head_dim / 2 of them, the highest first. As Hugging Face's implementation
// computes them in fp32, except that the power is rounded correctly: its own one is off by up to
// some units in the last place, other ones on each device, and ranks on unlike machines must agree.
std::vector<float> RotaryFrequencies(const ModelConfig& config);

}  // namespace fedshard::engine
