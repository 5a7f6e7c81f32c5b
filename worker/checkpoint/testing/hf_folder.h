// Small models and the files of their weights, for tests.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/model_config.h"
#include "worker/checkpoint/safetensors.h"

namespace fedshard::testing {

struct NamedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using NamedTensors = std::map<std::string, NamedTensor>;

// Two blocks of width 8, untied.
ModelConfig TinyModel();
// All parameters, with values that every dtype holds exactly and that differ between tensors.
NamedTensors TensorsOf(const ModelConfig& model);
void WriteTensors(const std::string& path, const NamedTensors& tensors, checkpoint::DType dtype);
// model-0000i-of-0000n.safetensors and their index.
void WriteSharded(const std::string& directory, const NamedTensors& tensors, int files,
                  checkpoint::DType dtype);

}  // namespace fedshard::testing
