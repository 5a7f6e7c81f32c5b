#include "tests/cluster/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>

#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/shard_description.h"
#include "worker/checkpoint/writer.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::testing {
namespace {

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

std::string ConfigJson(const ModelConfig& model, const std::string& more) {
  std::ostringstream text;
  text << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", )"
       << more << R"("vocab_size": )" << model.vocab_size << R"(, "hidden_size": )"
       << model.hidden_size << R"(, "intermediate_size": )" << model.intermediate_size
       << R"(, "num_hidden_layers": )" << model.num_hidden_layers << R"(, "num_attention_heads": )"
       << model.num_attention_heads << R"(, "num_key_value_heads": )" << model.num_key_value_heads
       << R"(, "max_position_embeddings": )" << model.max_position_embeddings
       << R"(, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": )"
       << (model.tie_word_embeddings ? "true" : "false") << "}\n";
  return text.str();
}

}  // namespace

ModelConfig SmallModel(bool tied) {
  ModelConfig model;
  model.vocab_size = 256;
  model.hidden_size = 32;
  model.intermediate_size = 48;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 8;
  model.max_position_embeddings = 64;
  model.rms_norm_eps = 1e-5;
  model.tie_word_embeddings = tied;
  return model;
}

ModelWeights RandomWeights(const ModelConfig& model, uint64_t seed) {
  ModelWeights weights{model, {}};
  std::mt19937_64 random(seed);
  const engine::ModelLayout layout(model, 1);
  for (const engine::UnitLayout& unit : layout.units()) {
    for (const engine::ParameterSpec& parameter : unit.parameters) {
      std::vector<float>& values = weights.values[parameter.name];
      for (int64_t i = 0; i < parameter.size; ++i) {
        const float draw = static_cast<float>(random() >> 40) * 0x1p-24f - 0.5f;
        values.push_back(parameter.decay ? draw : 1 + draw / 4);
      }
    }
  }
  return weights;
}

void WriteModelFolder(const std::string& path, const ModelWeights& weights,
                      const std::string& more) {
  std::filesystem::create_directories(path);
  std::ofstream(path + "/config.json") << ConfigJson(weights.model, more);
  std::vector<checkpoint::StoredTensor> tensors;
  const engine::ModelLayout layout(weights.model, 1);
  for (const auto& [name, values] : weights.values) {
    tensors.push_back(
        {name, checkpoint::DType::kF32, layout.units()[layout.UnitOf(name)].Find(name).shape});
  }
  auto writer = checkpoint::SafetensorsWriter::Create(path + "/model.safetensors", tensors, {});
  ThrowIfError(writer.status());
  for (const auto& [name, values] : weights.values) {
    ThrowIfError((*writer)->WriteFloats(values.data(), static_cast<int64_t>(values.size())));
  }
  ThrowIfError((*writer)->Finish());
}

std::string WriteCheckpoint(const std::string& directory, const ModelWeights& weights, int shards,
                            int64_t step) {
  checkpoint::Manifest manifest;
  manifest.job = "test";
  manifest.model_config = ConfigJson(weights.model, "");
  manifest.mesh = {1, 1, shards};
  manifest.step = step;
  const engine::ModelLayout layout(weights.model, shards);
  std::vector<std::string> stems;
  for (int shard = 0; shard < shards; ++shard) stems.push_back("shard-" + std::to_string(shard));
  std::string path, error;
  std::vector<std::unique_ptr<checkpoint::CheckpointWriter>> writers;
  for (int shard = 0; shard < shards; ++shard) {
    checkpoint::WriterOptions options;
    options.directory = directory;
    options.attempt = "a";
    options.leader = shard == 0;
    options.file_stem = stems[shard];
    options.all_stems = stems;
    options.chunk_bytes = 4096;
    writers.push_back(std::make_unique<checkpoint::CheckpointWriter>(
        options, [&, shard](const checkpoint::WriteResult& result) {
          if (shard == 0) path = result.path, error = result.error;
        }));
    std::vector<checkpoint::TensorToStore> tensors;
    std::vector<std::vector<float>> memory;  // Start copies.
    for (const checkpoint::FlatTensor& tensor :
         checkpoint::DescribeShard(layout, shard, "parameters", 0, "F32")) {
      memory.emplace_back(static_cast<size_t>(tensor.elements));
      for (const checkpoint::Piece& piece : tensor.pieces) {
        std::copy_n(weights.values.at(piece.parameter).begin() + piece.begin, piece.length,
                    memory.back().begin() + piece.offset);
      }
      tensors.push_back({tensor, memory.back().data()});
    }
    writers.back()->Start(manifest, tensors);
  }
  writers.clear();
  if (!error.empty() || path.empty()) throw std::runtime_error("no checkpoint: " + error);
  return path;
}

}  // namespace fedshard::testing
