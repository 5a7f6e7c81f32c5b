// One rank's training step: tokens per second, which matrix library was chosen, how much of the
// step is matrix products (timed alone at the shapes of the step, forward and both gradients), and
// its arithmetic against one large product's.
//   bench_step [--steps 20] [--smoke]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "worker/collective/self_comm.h"
#include "worker/engine/engine.h"
#include "worker/engine/math_backend.h"
#include "worker/kernels/matrix_product.h"

namespace fedshard::bench {
namespace {

struct Shape {
  const char* name;
  int64_t vocabulary, hidden, intermediate, layers, heads, kv_heads, sequence, batch;
};

// Processor time of this thread: equals the time on the clock when nothing else runs, and means
// something when other work shares the cores.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double MedianSeconds(int repeats, const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i < repeats + 2; ++i) {
    const double start = ThreadSeconds();
    body();
    if (i >= 2) times.push_back(ThreadSeconds() - start);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Seconds of y = x w^T and of both its gradients, for x [rows, in] and w [out, in].
double ProductSeconds(int64_t rows, int64_t in, int64_t out, int repeats) {
  const at::Tensor x = at::randn({rows, in}), w = at::randn({out, in}), g = at::randn({rows, out});
  return MedianSeconds(repeats, [&] {
    kernels::TimesTransposed(x, w);
    kernels::TimesTransposed(g, w.t());
    kernels::TimesTransposed(g.t(), x.t());
  });
}

// GFLOP/s of one large square product by the same library: what this machine can do.
double PeakGflops(int repeats) {
  const int64_t size = 1024;
  const at::Tensor a = at::randn({size, size}), b = at::randn({size, size});
  const double seconds = MedianSeconds(repeats, [&] { kernels::TimesTransposed(a, b); });
  return 2e-9 * static_cast<double>(size * size * size) / seconds;
}

void Measure(const Shape& s, int repeats) {
  engine::EngineOptions options;
  ModelConfig& m = options.model;
  m.vocab_size = s.vocabulary;
  m.hidden_size = s.hidden;
  m.intermediate_size = s.intermediate;
  m.num_hidden_layers = s.layers;
  m.num_attention_heads = s.heads;
  m.num_key_value_heads = s.kv_heads;
  m.head_dim = s.hidden / s.heads;
  m.max_position_embeddings = s.sequence;
  options.sequence_length = s.sequence;
  options.micro_batch = s.batch;
  collective::SelfComm self;
  engine::Engine engine(options, self, self);
  engine.InitializeRandom(1);
  const std::vector<at::Tensor> batch = {
      at::randint(s.vocabulary, {s.batch, s.sequence + 1}, at::kLong)};
  const double step = MedianSeconds(repeats, [&] { engine.Step(batch, 1e-3); });

  const int64_t rows = s.batch * s.sequence, kv = m.head_dim * s.kv_heads;
  const double products =
      static_cast<double>(s.layers) * (2 * ProductSeconds(rows, s.hidden, s.hidden, repeats) +
                                       2 * ProductSeconds(rows, s.hidden, kv, repeats) +
                                       2 * ProductSeconds(rows, s.hidden, s.intermediate, repeats) +
                                       ProductSeconds(rows, s.intermediate, s.hidden, repeats)) +
      ProductSeconds(rows, s.hidden, s.vocabulary, repeats);
  const double flops = 6.0 * static_cast<double>(engine.parameters() - s.vocabulary * s.hidden) *
                       static_cast<double>(rows);
  // Beside the model's step, so that other work on the machine meets both.
  const double peak = PeakGflops(repeats);
  printf("| %s | %.2f M | %ld | %.1f | %.0f | %.0f %% | %.0f | %.0f %% |\n", s.name,
         static_cast<double>(engine.parameters()) * 1e-6, static_cast<long>(rows), step * 1e3,
         static_cast<double>(rows) / step, 100 * products / step, flops / step * 1e-9,
         100e-9 * flops / step / peak);
}

int Main(int argc, char** argv) {
  int repeats = 20;
  bool smoke = false;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--smoke") == 0) {
      smoke = true;
      repeats = 1;
    } else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
      repeats = std::max(1, atoi(argv[++i]));
    } else {
      fprintf(stderr, "usage: bench_step [--steps N] [--smoke]\n");
      return 2;
    }
  }
  at::set_num_threads(1);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // As the trainer does.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  printf("matrix library: %s\n\n", engine::SelectMathBackend().c_str());
  printf(
      "| model | parameters | tokens a step | ms a step | tokens/s | matrix products | GFLOP/s | "
      "of peak |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  Measure({"quickstart", 256, 256, 704, 4, 8, 4, 128, 2}, repeats);
  if (smoke) return 0;
  Measure({"quickstart, batch 8", 256, 256, 704, 4, 8, 4, 128, 8}, repeats);
  Measure({"28 M", 32000, 512, 1408, 4, 8, 4, 256, 4}, std::max(3, repeats / 4));
  Measure({"wide", 4096, 1024, 4096, 4, 16, 16, 256, 4}, std::max(3, repeats / 4));
  return 0;
}

}  // namespace
}  // namespace fedshard::bench

int main(int argc, char** argv) { return fedshard::bench::Main(argc, argv); }
