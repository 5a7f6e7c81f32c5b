#include "worker/engine/rotary_frequencies.h"

#include <cmath>
#include <numbers>

namespace fedshard::engine {
namespace {

// Every operation in fp32 and in the order of the reference, down to the reciprocals.
float StretchLlama3(float frequency, const RopeScaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const auto low_wavelength = static_cast<float>(context / scaling.low_freq_factor);
  const auto high_wavelength = static_cast<float>(context / scaling.high_freq_factor);
  const float wavelength = 1.0f / frequency * static_cast<float>(2 * std::numbers::pi);
  if (wavelength < high_wavelength) return frequency;
  if (wavelength > low_wavelength) return frequency / factor;
  const float turns = 1.0f / wavelength * static_cast<float>(context);
  const float ramp = (turns - static_cast<float>(scaling.low_freq_factor)) /
                     static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0f - ramp) * frequency / factor + ramp * frequency;
}

}  // namespace

std::vector<float> RotaryFrequencies(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < config.head_dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    auto frequency = static_cast<float>(1.0 / std::pow(config.rope_theta, exponent));
    switch (config.rope_scaling.type) {
      case RopeScaling::Type::kDefault:
        break;
      case RopeScaling::Type::kLinear:
        frequency /= static_cast<float>(config.rope_scaling.factor);
        break;
      case RopeScaling::Type::kLlama3:
        frequency = StretchLlama3(frequency, config.rope_scaling);
        break;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace fedshard::engine
