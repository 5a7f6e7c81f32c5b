// Shape of a Llama-family decoder, with the field names of Hugging Face's config.json. Plain data
// without dependencies, so that the engine (LibTorch alone) and the control plane share it; parsed
// by common/spec/model_config_json.h.
#pragma once

#include <cstdint>

namespace fedshard {

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
  double initializer_range = 0.02;  // Standard deviation of the initial matrices.
  bool tie_word_embeddings = false;
};

}  // namespace fedshard
