// A small model with weights drawn from a seed, as a Hugging Face folder or as a checkpoint, for
// tests of what reads them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/model_config.h"

namespace fedshard::testing {

// Byte vocabulary, grouped heads, two blocks.
ModelConfig SmallModel(bool tied = false);

struct ModelWeights {
  ModelConfig model;
  std::map<std::string, std::vector<float>> values;  // By parameter.
};

// Large enough weights that the model has opinions.
ModelWeights RandomWeights(const ModelConfig& model, uint64_t seed);

// Writes config.json, with `more` ("\"eos_token_id\": 3,") in it, and model.safetensors.
void WriteModelFolder(const std::string& path, const ModelWeights& weights,
                      const std::string& more = "");

// Writes DIRECTORY/step-N as a group of `shards` ranks would; returns its path.
std::string WriteCheckpoint(const std::string& directory, const ModelWeights& weights, int shards,
                            int64_t step);

}  // namespace fedshard::testing
