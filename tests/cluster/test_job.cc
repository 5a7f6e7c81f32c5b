#include "tests/cluster/test_job.h"

#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace fedshard::testing {
namespace {

constexpr char kModel[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "initializer_range": 0.02
})";

// Text-like bytes that need no file: words of a small vocabulary in an order given by a counter.
std::vector<uint16_t> Tokens(int64_t count, uint64_t seed) {
  static const char* const kWords[] = {"the ",  "ranks ", "of ",  "a ",     "group ", "hold ",
                                       "one ",  "model ", "and ", "meet ",  "again ", "after ",
                                       "each ", "round.", "\n",   "shard ", "by ",    "average "};
  std::vector<uint16_t> tokens;
  uint64_t state = seed;
  while (static_cast<int64_t>(tokens.size()) < count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    for (const char* c = kWords[(state >> 33) % std::size(kWords)]; *c != 0; ++c) {
      tokens.push_back(static_cast<unsigned char>(*c));
    }
  }
  tokens.resize(count);
  return tokens;
}

}  // namespace

TestJob Shaped(const std::string& name, const std::string& mode, int groups, int replicas,
               int shards) {
  TestJob job;
  job.name = name;
  job.mode = mode;
  job.groups = groups;
  job.replicas = replicas;
  job.shards = shards;
  return job;
}

void WriteTokenFile(const std::string& path_without_extension, const std::vector<uint16_t>& tokens,
                    int vocabulary) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(tokens.data());
  const size_t size = tokens.size() * sizeof(uint16_t);
  std::ofstream(path_without_extension + ".bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  char checksum[32];
  snprintf(checksum, sizeof checksum, "crc32:%08lx", crc32(0, bytes, static_cast<uInt>(size)));
  std::ofstream(path_without_extension + ".json")
      << R"({"dtype": "uint16", "count": )" << tokens.size() << R"(, "vocabulary": )" << vocabulary
      << R"(, "tokenizer": "bytes", "checksum": ")" << checksum << "\"}\n";
}

JobFolder::JobFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "fedshard-test-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + path);
  path_ = path;
  WriteTokenFile(path_ + "/train", Tokens(60'000, 1), 256);
  WriteTokenFile(path_ + "/validation", Tokens(6'000, 2), 256);
  WriteFile("model.json", kModel);
}

JobFolder::~JobFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void JobFolder::WriteFile(const std::string& name, const std::string& content) const {
  std::ofstream(path_ + "/" + name, std::ios::binary) << content;
}

std::string JobFolder::Write(const TestJob& job) const {
  std::ostringstream text;
  text << "name: " << job.name << "\n"
       << "model: {" << job.model << ", seed: " << job.seed << "}\n"
       << "data: {train: train.bin, validation: validation.bin, sequence_length: "
       << job.sequence_length << ", seed: 7, order: " << job.order << "}\n"
       << "mesh: {mode: " << job.mode << ", federation_groups: " << job.groups
       << ", replicas: " << job.replicas << ", shards: " << job.shards << "}\n"
       << "training:\n"
       << "  steps: " << job.steps << "\n"
       << "  micro_batch: " << job.micro_batch << "\n"
       << "  accumulation: " << job.accumulation << "\n"
       << "  check_replicas_every: " << job.check_replicas_every << "\n"
       << "  optimizer: " << job.optimizer << "\n"
       << "  schedule: " << job.schedule << "\n"
       << job.training << "federation: {every_steps: " << job.every_steps
       << ", weighting: " << job.weighting << job.federation << "}\n"
       << job.sections << "evaluation: " << job.evaluation << "\n"
       << "resources: {device: cpu, threads_per_rank: 1}\n";
  WriteFile(job.name + ".yaml", text.str());
  return path_ + "/" + job.name + ".yaml";
}

}  // namespace fedshard::testing
