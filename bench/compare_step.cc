// One rank of fedshard's side of bench/compare_fsdp: trains on given weights and tokens with the
// other ranks, as processes over Gloo, and prints what it measured as one JSON object.
//   bench_compare_step FOLDER RANK REPLICAS SHARDS STEPS WARM_UP
// FOLDER holds what the script wrote: shape.txt, weights.bin, weights.txt, tokens.bin.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "worker/collective/group_factory.h"
#include "worker/engine/engine.h"
#include "worker/engine/math_backend.h"

namespace fedshard::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double ProcessSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

long PeakKib() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

std::ifstream Open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, path, ": cannot be read");
  return file;
}

struct Shape {
  engine::EngineOptions options;
  int64_t ranks = 0;
};

Shape ReadShape(const std::string& folder) {
  std::ifstream file = Open(folder + "/shape.txt");
  std::map<std::string, double> values;
  std::string key;
  for (double value; file >> key >> value;) values[key] = value;
  const auto whole = [&](const char* name) { return static_cast<int64_t>(values.at(name)); };
  Shape shape;
  ModelConfig& model = shape.options.model;
  model.vocab_size = whole("vocab_size");
  model.hidden_size = whole("hidden_size");
  model.intermediate_size = whole("intermediate_size");
  model.num_hidden_layers = whole("num_hidden_layers");
  model.num_attention_heads = whole("num_attention_heads");
  model.num_key_value_heads = whole("num_key_value_heads");
  model.head_dim = model.hidden_size / model.num_attention_heads;
  model.max_position_embeddings = whole("sequence_length");
  model.rms_norm_eps = values.at("rms_norm_eps");
  shape.options.sequence_length = whole("sequence_length");
  shape.options.micro_batch = whole("micro_batch");
  shape.options.optimizer.eps = 1e-6;  // As the script's other contenders, and why: see there.
  shape.ranks = whole("ranks");
  return shape;
}

void LoadWeights(const std::string& folder, engine::Engine& engine) {
  std::map<std::string, int64_t> offsets;  // In elements.
  std::ifstream index = Open(folder + "/weights.txt");
  std::string name;
  for (int64_t offset; index >> name >> offset;) offsets[name] = offset;
  std::ifstream values = Open(folder + "/weights.bin");
  engine.Load(engine::StateKind::kParameters, [&](const std::string& parameter, int64_t begin,
                                                  int64_t count, float* out) {
    const auto first = static_cast<int64_t>(sizeof(float)) * (offsets.at(parameter) + begin);
    values.seekg(first);
    values.read(reinterpret_cast<char*>(out), static_cast<std::streamsize>(sizeof(float)) * count);
    TORCH_CHECK(values, "weights.bin ends inside ", parameter);
  });
}

// Micro-batch of `rank` in `step`: int64 [B, T+1].
at::Tensor ReadTokens(std::ifstream& file, const Shape& shape, int64_t step, int64_t rank) {
  const int64_t batch = shape.options.micro_batch, length = shape.options.sequence_length + 1;
  at::Tensor tokens = at::empty({batch, length}, at::kLong);
  file.seekg((step * shape.ranks + rank) * static_cast<int64_t>(tokens.nbytes()));
  file.read(static_cast<char*>(tokens.mutable_data_ptr()),
            static_cast<std::streamsize>(tokens.nbytes()));
  TORCH_CHECK(file, "tokens.bin ends before step ", step);
  return tokens;
}

void PinTo(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(rank % static_cast<int>(std::thread::hardware_concurrency()), &set);
  sched_setaffinity(0, sizeof set, &set);
}

int Main(int argc, char** argv) {
  const Clock::time_point started = Clock::now();
  if (argc != 7) {
    fprintf(stderr, "usage: bench_compare_step FOLDER RANK REPLICAS SHARDS STEPS WARM_UP\n");
    return 2;
  }
  const std::string folder = argv[1];
  const int rank = atoi(argv[2]), replicas = atoi(argv[3]), shards = atoi(argv[4]);
  const int64_t steps = atoll(argv[5]), warm_up = atoll(argv[6]);
  PinTo(rank);
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // As the trainer does.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const std::string library = engine::SelectMathBackend();
  const Shape shape = ReadShape(folder);
  const auto store = c10::make_intrusive<c10d::FileStore>(folder + "/store", replicas * shards);
  collective::MeshComms comms = collective::ConnectMesh(
      {1, replicas, shards}, rank, c10::make_intrusive<c10d::PrefixStore>("g", store),
      c10::make_intrusive<c10d::PrefixStore>("f", store), {});
  engine::Engine engine(shape.options, *comms.shard, *comms.replica);
  LoadWeights(folder, engine);

  std::ifstream tokens = Open(folder + "/tokens.bin");
  std::vector<double> losses, norms, seconds;
  double first = 0, cpu = 0;
  int64_t bytes = 0;
  for (int64_t step = 0; step < warm_up + steps; ++step) {
    if (step == warm_up) {
      cpu = ProcessSeconds();
      bytes = comms.shard->bytes_sent() + comms.replica->bytes_sent();
    }
    const at::Tensor batch = ReadTokens(tokens, shape, step, rank);
    const Clock::time_point begin = Clock::now();
    const engine::StepResult result = engine.Step({batch}, 3e-4);
    if (step >= warm_up) seconds.push_back(SecondsSince(begin));
    if (step == 0) first = SecondsSince(started);
    losses.push_back(result.loss);
    norms.push_back(result.gradient_norm);
  }
  cpu = ProcessSeconds() - cpu;
  bytes = comms.shard->bytes_sent() + comms.replica->bytes_sent() - bytes;
  const auto list = [](const std::vector<double>& values) {
    std::string text = "[";
    char number[32];
    for (size_t i = 0; i < values.size(); ++i) {
      snprintf(number, sizeof number, "%s%.9g", i > 0 ? ", " : "", values[i]);
      text += number;
    }
    return text + "]";
  };
  printf(
      "{\"losses\": %s, \"norms\": %s, \"seconds\": %s, \"cpu_seconds\": %.6f, "
      "\"first_step_seconds\": %.3f, \"peak_kib\": %ld, \"bytes\": %ld, \"library\": \"%s\"}\n",
      list(losses).c_str(), list(norms).c_str(), list(seconds).c_str(), cpu, first, PeakKib(),
      static_cast<long>(bytes), library.c_str());
  return 0;
}

}  // namespace
}  // namespace fedshard::bench

int main(int argc, char** argv) { return fedshard::bench::Main(argc, argv); }
