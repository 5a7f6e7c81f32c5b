#include "worker/checkpoint/testing/hf_folder.h"

#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "worker/engine/unit_layout.h"

namespace fedshard::testing {
namespace {

void MustBeOk(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

}  // namespace

ModelConfig TinyModel() {
  ModelConfig model;
  model.vocab_size = 24;
  model.hidden_size = 8;
  model.intermediate_size = 20;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 1;
  model.head_dim = 4;
  model.max_position_embeddings = 32;
  return model;
}

NamedTensors TensorsOf(const ModelConfig& model) {
  NamedTensors tensors;
  const engine::ModelLayout layout(model, 1);
  int64_t at = 0;
  for (const engine::UnitLayout& unit : layout.units()) {
    for (const engine::ParameterSpec& parameter : unit.parameters) {
      NamedTensor& tensor = tensors[parameter.name];
      tensor.shape = parameter.shape;
      for (int64_t i = 0; i < parameter.size; ++i) {
        tensor.values.push_back(static_cast<float>(at++ % 255 - 127) / 64);
      }
      at += 13;
    }
  }
  return tensors;
}

void WriteTensors(const std::string& path, const NamedTensors& tensors, checkpoint::DType dtype) {
  std::vector<checkpoint::StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) stored.push_back({name, dtype, tensor.shape});
  auto writer = checkpoint::SafetensorsWriter::Create(path, stored, {{"format", "pt"}});
  MustBeOk(writer.status());
  for (const auto& [name, tensor] : tensors) {
    MustBeOk(
        (*writer)->WriteFloats(tensor.values.data(), static_cast<int64_t>(tensor.values.size())));
  }
  MustBeOk((*writer)->Finish());
}

void WriteSharded(const std::string& directory, const NamedTensors& tensors, int files,
                  checkpoint::DType dtype) {
  std::vector<NamedTensors> parts(files);
  int next = 0;
  for (const auto& [name, tensor] : tensors) parts[next++ % files][name] = tensor;
  nlohmann::json index;
  for (int i = 0; i < files; ++i) {
    char file[64];
    snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", i + 1, files);
    WriteTensors(directory + "/" + file, parts[i], dtype);
    for (const auto& [name, tensor] : parts[i]) index["weight_map"][name] = file;
  }
  std::ofstream(directory + "/model.safetensors.index.json") << index;
}

}  // namespace fedshard::testing
