// The ranks of any mesh read a Hugging Face folder's weights into the same model, each exactly the
// elements of its own shard.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/testing/temp_dir.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/testing/hf_folder.h"
#include "worker/collective/fake_comm.h"
#include "worker/collective/testing/ranks.h"
#include "worker/engine/engine.h"

namespace fedshard {
namespace {

// How often each element of each parameter was read.
using Reads = std::map<std::string, std::vector<int>>;

struct Loaded {
  std::vector<Reads> reads;  // By rank.
  std::vector<std::string> hashes;
};

Loaded Load(const Mesh& mesh, const ModelConfig& model, const checkpoint::HfWeights& weights) {
  engine::EngineOptions options;
  options.model = model;
  options.sequence_length = 4;
  collective::FakeMesh fake(mesh);
  Loaded loaded{std::vector<Reads>(mesh.world_size()), std::vector<std::string>(mesh.world_size())};
  collective::RunRanks(mesh.world_size(), [&](int rank) {
    collective::MeshComms comms = fake.Connect(rank);
    engine::Engine engine(options, *comms.shard, *comms.replica);
    engine.Load(engine::StateKind::kParameters,
                [&](const std::string& name, int64_t begin, int64_t count, float* out) {
                  if (const absl::Status read = weights.Read(name, begin, count, out); !read.ok()) {
                    throw std::runtime_error(read.ToString());
                  }
                  std::vector<int>& reads = loaded.reads[rank][name];
                  if (static_cast<int64_t>(reads.size()) < begin + count)
                    reads.resize(begin + count);
                  for (int64_t i = begin; i < begin + count; ++i) ++reads[i];
                });
    loaded.hashes[rank] = engine.ParameterHash();
  });
  return loaded;
}

TEST(HfLoad, EveryMeshReadsEachElementOncePerReplica) {
  testing::TempDir folder;
  for (const bool tied : {false, true}) {
    ModelConfig model = testing::TinyModel();
    model.vocab_size = 1500;  // Units of several blocks, so that shards cut through parameters.
    model.hidden_size = 24;
    model.tie_word_embeddings = tied;
    const testing::NamedTensors tensors = testing::TensorsOf(model);
    const std::string path = folder.path() + (tied ? "/tied" : "/untied");
    std::filesystem::create_directory(path);
    testing::WriteSharded(path, tensors, 3, checkpoint::DType::kBF16);
    const auto weights = checkpoint::HfWeights::Open(path, model);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const Loaded alone = Load({1, 1, 1}, model, **weights);
    for (const Mesh& mesh : {Mesh{1, 1, 1}, Mesh{1, 1, 3}, Mesh{2, 2, 2}}) {
      const Loaded loaded = Load(mesh, model, **weights);
      Reads sum;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        EXPECT_EQ(loaded.hashes[rank], alone.hashes[0]);
        for (const auto& [name, reads] : loaded.reads[rank]) {
          sum[name].resize(tensors.at(name).values.size());
          for (size_t i = 0; i < reads.size(); ++i) sum[name][i] += reads[i];
        }
      }
      EXPECT_EQ(sum.size(), tensors.size());
      for (const auto& [name, reads] : sum) {
        EXPECT_EQ(reads, std::vector<int>(reads.size(), mesh.groups * mesh.replicas)) << name;
      }
    }
  }
}

TEST(HfLoad, OtherWeightsAreAnotherModel) {
  testing::TempDir folder;
  const ModelConfig model = testing::TinyModel();
  testing::NamedTensors tensors = testing::TensorsOf(model);
  const std::string file = folder.path() + "/model.safetensors";
  testing::WriteTensors(file, tensors, checkpoint::DType::kF32);
  const auto weights = checkpoint::HfWeights::Open(folder.path(), model);
  tensors.at("model.layers.1.mlp.up_proj.weight").values.back() += 1;
  std::filesystem::remove(file);  // The opened one stays as it was.
  testing::WriteTensors(file, tensors, checkpoint::DType::kF32);
  const auto changed = checkpoint::HfWeights::Open(folder.path(), model);
  EXPECT_NE(Load({1, 1, 2}, model, **weights).hashes[0],
            Load({1, 1, 2}, model, **changed).hashes[0]);
}

}  // namespace
}  // namespace fedshard
