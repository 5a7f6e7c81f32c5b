// Shape of a Llama-family decoder, with the field names of Hugging Face's config.json. Plain data
// without dependencies, so that the engine (LibTorch alone) and the control plane share it; parsed
// by common/spec/model_config_json.h.
#pragma once

#include <cstdint>

namespace fedshard {

// How the frequencies of rotary embeddings are stretched for longer contexts.
struct RopeScaling {
  enum class Type {
    kDefault,  // Not at all.
    kLinear,   // All divided by `factor`.
    kLlama3,   // Low ones divided by `factor`, high ones kept, a ramp between them.
  };
  Type type = Type::kDefault;
  double factor = 1;
  // Of kLlama3: wavelengths above original_max_position_embeddings / low_freq_factor are low
  // frequencies, below original_max_position_embeddings / high_freq_factor high ones.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 0;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // Divides num_attention_heads; equal = MHA.
  int64_t head_dim = 0;             // Even. Default hidden_size / num_attention_heads.
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double initializer_range = 0.02;  // Standard deviation of the initial matrices.
  bool tie_word_embeddings = false;
};

}  // namespace fedshard
