#include "worker/checkpoint/testing/fake_state.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/dtype.h"
#include "worker/checkpoint/shard_description.h"
#include "worker/collective/hash.h"

namespace fedshard::checkpoint::testing {

ModelConfig SmallModel(bool tied) {
  ModelConfig model;
  model.vocab_size = 301;
  model.hidden_size = 36;
  model.intermediate_size = 91;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 6;
  model.num_key_value_heads = 2;
  model.head_dim = 6;
  model.max_position_embeddings = 64;
  model.tie_word_embeddings = tied;
  return model;
}

float ValueOf(const std::string& kind, int32_t group, const std::string& parameter, int64_t index,
              const std::string& dtype, int64_t salt) {
  const std::string key = absl::StrCat(kind, "/", kind == "parameters" ? 0 : group, "/", parameter);
  const uint64_t seed = collective::Fingerprint64(key.data(), key.size());
  const int64_t words[] = {index, salt};
  const uint64_t hash = collective::Fingerprint64(words, sizeof words, seed);
  return static_cast<float>(hash % (dtype == "BF16" ? 256 : 1 << 24));
}

WriterOptions OptionsFor(const std::string& directory, const Mesh& mesh, int32_t group,
                         int32_t shard) {
  WriterOptions options;
  options.directory = directory;
  options.attempt = "a1";
  options.leader = group == 0 && shard == 0;
  options.chunk_bytes = 4096;
  options.deadline_ms = 60'000;  // A broken protocol should fail the test, not hang it.
  for (int32_t f = 0; f < mesh.groups; ++f) {
    for (int32_t s = 0; s < mesh.shards; ++s) {
      options.all_stems.push_back(absl::StrCat("group-", f, "-shard-", s));
    }
  }
  options.file_stem = absl::StrCat("group-", group, "-shard-", shard);
  return options;
}

Manifest ManifestFor(const StateOptions& state) {
  Manifest manifest;
  manifest.job = "fake";
  manifest.model_config = "{}";
  manifest.mesh = state.mesh;
  manifest.step = state.step;
  manifest.tokens = state.step * 1000;
  manifest.next_sample = state.step * 8;
  manifest.model_seed = 0xffff'ffff'ffff'fff0u;
  manifest.data_seed = 7;
  manifest.optimizer_steps = state.step - 1;
  return manifest;
}

std::vector<TensorToStore> TensorsOf(const StateOptions& state, int32_t group, int32_t shard,
                                     std::vector<std::vector<char>>& memory) {
  const engine::ModelLayout layout(state.model, state.mesh.shards);
  std::vector<FlatTensor> described;
  if (group == 0) described = DescribeShard(layout, shard, "parameters", 0, "F32");
  for (const std::string& kind : state.moments) {
    for (FlatTensor& tensor : DescribeShard(layout, shard, kind, group, state.moment_dtype)) {
      described.push_back(std::move(tensor));
    }
  }
  std::vector<TensorToStore> tensors;
  for (const FlatTensor& tensor : described) {
    std::vector<float> values(static_cast<size_t>(tensor.elements));
    for (const Piece& piece : tensor.pieces) {
      for (int64_t i = 0; i < piece.length; ++i) {
        values[piece.offset + i] = ValueOf(tensor.kind, tensor.group, piece.parameter,
                                           piece.begin + i, tensor.dtype, state.salt);
      }
    }
    const DType dtype = *ParseDType(tensor.dtype);
    memory.emplace_back(values.size() * static_cast<size_t>(BytesOf(dtype)));
    FromFloats(dtype, values.data(), tensor.elements, memory.back().data());
    tensors.push_back({tensor, memory.back().data()});
  }
  return tensors;
}

WriteResult WriteAll(const std::string& directory, const StateOptions& state,
                     const std::function<void(WriterOptions&)>& adjust) {
  WriteResult leader;
  {
    std::vector<std::unique_ptr<CheckpointWriter>> writers;
    for (int32_t f = 0; f < state.mesh.groups; ++f) {
      for (int32_t s = 0; s < state.mesh.shards; ++s) {
        WriterOptions options = OptionsFor(directory, state.mesh, f, s);
        if (adjust) adjust(options);
        const bool leads = options.leader;
        writers.push_back(std::make_unique<CheckpointWriter>(
            options, [&leader, leads](const WriteResult& result) {
              if (leads) leader = result;
            }));
        std::vector<std::vector<char>> memory;  // Start copies.
        writers.back()->Start(ManifestFor(state), TensorsOf(state, f, s, memory));
      }
    }
  }
  return leader;
}

absl::Status CheckAs(const CheckpointReader& reader, const StateOptions& written,
                     const Mesh& mesh) {
  const engine::ModelLayout layout(written.model, mesh.shards);
  std::vector<std::string> kinds = written.moments;
  kinds.push_back("parameters");
  for (const std::string& kind : kinds) {
    const std::string dtype = kind == "parameters" ? "F32" : written.moment_dtype;
    for (int32_t group = 0; group < mesh.groups; ++group) {
      ASSIGN_OR_RETURN(const auto source, reader.Source(kind, group));
      for (int32_t shard = 0; shard < mesh.shards; ++shard) {
        for (const FlatTensor& tensor : DescribeShard(layout, shard, kind, group, dtype)) {
          for (const Piece& piece : tensor.pieces) {
            std::vector<float> values(static_cast<size_t>(piece.length));
            RETURN_IF_ERROR(
                source->Read(piece.parameter, piece.begin, piece.length, values.data()));
            for (int64_t i = 0; i < piece.length; ++i) {
              const float expected = ValueOf(kind, group % written.mesh.groups, piece.parameter,
                                             piece.begin + i, dtype, written.salt);
              if (values[i] == expected) continue;
              return absl::InternalError(absl::StrCat(kind, " of ", piece.parameter, "[",
                                                      piece.begin + i, "] in group ", group, " is ",
                                                      values[i], ", not ", expected));
            }
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fedshard::checkpoint::testing
