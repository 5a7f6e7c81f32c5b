// What the options of a step cost or save on one rank: processor time of a step with each, in
// turns, so that all see the same machine.
//   bench_step_options [--rounds 10] [--smoke]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/collective/self_comm.h"
#include "worker/engine/engine.h"

namespace fedshard::bench {
namespace {

using engine::EngineOptions;
using engine::Precision;
using engine::Recompute;

struct Variant {
  const char* name;
  std::function<void(EngineOptions&)> change;
};

const std::vector<Variant>& Variants() {
  static const std::vector<Variant> variants = {
      {"fp32", [](EngineOptions&) {}},
      {"recompute: selective", [](EngineOptions& o) { o.recompute = Recompute::kSelective; }},
      {"recompute: block", [](EngineOptions& o) { o.recompute = Recompute::kBlock; }},
      {"moments: bf16", [](EngineOptions& o) { o.optimizer.moments = Precision::kBf16; }},
      {"precision: bf16",
       [](EngineOptions& o) { o.precision = o.gather_precision = Precision::kBf16; }},
  };
  return variants;
}

// Processor time of this thread: equals the time on the clock when nothing else runs.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void Measure(const char* name, const EngineOptions& base, int rounds) {
  collective::SelfComm self;
  const std::vector<at::Tensor> batch = {
      at::randint(base.model.vocab_size, {base.micro_batch, base.sequence_length + 1}, at::kLong)};
  std::vector<std::unique_ptr<engine::Engine>> engines;
  for (const Variant& variant : Variants()) {
    EngineOptions options = base;
    variant.change(options);
    engines.push_back(std::make_unique<engine::Engine>(options, self, self));
    engines.back()->InitializeRandom(1);
    engines.back()->Step(batch, 1e-3);
  }
  std::vector<std::vector<double>> seconds(engines.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < engines.size(); ++i) {
      const double start = ThreadSeconds();
      engines[i]->Step(batch, 1e-3);
      seconds[i].push_back(ThreadSeconds() - start);
    }
  }
  double plain = 0;
  for (size_t i = 0; i < engines.size(); ++i) {
    std::sort(seconds[i].begin(), seconds[i].end());
    const double median = seconds[i][seconds[i].size() / 2];
    if (i == 0) plain = median;
    printf("| %s | %s | %.1f | %.2f |\n", name, Variants()[i].name, median * 1e3, median / plain);
  }
}

EngineOptions Options(int64_t vocabulary, int64_t hidden, int64_t intermediate, int64_t sequence,
                      int64_t batch) {
  EngineOptions options;
  options.model.vocab_size = vocabulary;
  options.model.hidden_size = hidden;
  options.model.intermediate_size = intermediate;
  options.model.num_hidden_layers = 4;
  options.model.num_attention_heads = 8;
  options.model.num_key_value_heads = 4;
  options.model.head_dim = hidden / 8;
  options.model.max_position_embeddings = sequence;
  options.sequence_length = sequence;
  options.micro_batch = batch;
  return options;
}

int Main(int argc, char** argv) {
  int rounds = 10;
  bool smoke = false;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--smoke") == 0) {
      smoke = true;
      rounds = 1;
    } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, atoi(argv[++i]));
    } else {
      fprintf(stderr, "usage: bench_step_options [--rounds N] [--smoke]\n");
      return 2;
    }
  }
  at::set_num_threads(1);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // As the trainer does.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  printf("| model | step | ms | of fp32 |\n| --- | --- | --- | --- |\n");
  Measure("quickstart, batch 8", Options(256, 256, 704, 128, 8), rounds);
  if (!smoke) Measure("28 M", Options(32000, 512, 1408, 256, 4), rounds);
  return 0;
}

}  // namespace
}  // namespace fedshard::bench

int main(int argc, char** argv) { return fedshard::bench::Main(argc, argv); }
