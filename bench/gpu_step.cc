// Times whole training steps of the engine on one GPU; docs/cuda.md says how to read the output.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "worker/collective/nccl_plugin.h"
#include "worker/collective/self_comm.h"
#include "worker/engine/engine.h"
#include "worker/kernels/cuda/table.h"

namespace fedshard::bench {
namespace {

constexpr char kUsage[] =
    R"(usage: bench_gpu_step [--layers N] [--sequence T] [--batch B] [--steps N] [--fp32] [--peak TFLOPS]
Trains Llama-3.2-1B (random weights and tokens) on GPU 0 and prints tokens/s and MFU.
  --layers 16 --sequence 2048 --batch 8 --steps 20   the defaults
  --fp32          compute in fp32, not bf16
  --peak TFLOPS   the GPU's dense peak for that precision, when it is not known here
)";

struct Arguments {
  int64_t layers = 16;
  int64_t sequence = 2048;
  int64_t batch = 8;
  int64_t steps = 20;
  bool fp32 = false;
  double peak_tflops = 0;
};

bool Parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--fp32") {
      a.fp32 = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (name == "--layers") {
      a.layers = atoll(value);
    } else if (name == "--sequence") {
      a.sequence = atoll(value);
    } else if (name == "--batch") {
      a.batch = atoll(value);
    } else if (name == "--steps") {
      a.steps = atoll(value);
    } else if (name == "--peak") {
      a.peak_tflops = atof(value);
    } else {
      return false;
    }
  }
  return a.layers > 0 && a.sequence > 0 && a.batch > 0 && a.steps > 0;
}

// Dense bf16 peak of the maker's data sheet, FLOP/s; 0 if not listed. The first match counts.
double Bf16Peak(const std::string& device) {
  const std::pair<const char*, double> peaks[] = {
      {"B200", 2250e12}, {"H200", 989e12},     {"GH200", 989e12}, {"H100 PCIe", 756e12},
      {"H100", 989e12},  {"A100", 312e12},     {"L40S", 362e12},  {"L4", 121e12},
      {"A10", 125e12},   {"RTX 4090", 165e12},
  };
  for (const auto& [name, peak] : peaks) {
    if (device.find(name) != std::string::npos) return peak;
  }
  return 0;
}

ModelConfig Llama1B(int64_t layers, int64_t sequence) {
  ModelConfig model;
  model.vocab_size = 128'256;
  model.hidden_size = 2048;
  model.intermediate_size = 8192;
  model.num_hidden_layers = layers;
  model.num_attention_heads = 32;
  model.num_key_value_heads = 8;
  model.head_dim = 64;
  model.max_position_embeddings = sequence;
  model.rms_norm_eps = 1e-5;
  model.rope_theta = 500'000;
  model.tie_word_embeddings = true;
  return model;
}

// Of the model, forward and backward (twice the forward pass), without what is computed again: 6
// for each parameter that multiplies the token, head included and embedding not, and 6 T d for the
// causal attention of a layer with d = heads * head_dim, in which a token sees T / 2 others.
double FlopsPerToken(const ModelConfig& m, int64_t sequence) {
  const double d = static_cast<double>(m.num_attention_heads * m.head_dim);
  const double kv = static_cast<double>(m.num_key_value_heads * m.head_dim);
  const double hidden = static_cast<double>(m.hidden_size);
  const double block =
      hidden * (d + 2 * kv) + d * hidden + 3 * hidden * static_cast<double>(m.intermediate_size);
  const double layers = static_cast<double>(m.num_hidden_layers);
  const double matrices = layers * block + static_cast<double>(m.vocab_size) * hidden;
  return 6 * matrices + 6 * layers * static_cast<double>(sequence) * d;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

void Measure(const Arguments& a) {
  const std::string device = at::cuda::getDeviceProperties(0)->name;
  engine::EngineOptions options;
  options.model = Llama1B(a.layers, a.sequence);
  options.sequence_length = a.sequence;
  options.micro_batch = a.batch;
  options.loss_chunk_tokens = 2048;
  options.cuda = true;
  if (!a.fp32) options.precision = engine::Precision::kBf16;
  collective::SelfComm alone;
  engine::Engine engine(options, alone, alone);
  engine.InitializeRandom(1);
  const std::vector<at::Tensor> batch = {
      at::randint(options.model.vocab_size, {a.batch, a.sequence + 1}, at::kLong)};
  for (int i = 0; i < 3; ++i) engine.Step(batch, 1e-5);
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);

  // A step ends with the loss on the CPU, so it is over when it returns but for the optimizer.
  std::vector<double> seconds;
  for (int64_t i = 0; i < a.steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    engine.Step(batch, 1e-5);
    at::cuda::getCurrentCUDAStream().synchronize();
    seconds.push_back(Seconds(start));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double tokens = static_cast<double>(a.batch * a.sequence);
  const double flops = FlopsPerToken(options.model, a.sequence) * tokens / median;
  const double peak = a.peak_tflops > 0 ? a.peak_tflops * 1e12 : (a.fp32 ? 0.0 : Bf16Peak(device));
  const auto memory = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].peak;
  printf("GPU:          %s\n", device.c_str());
  printf("precision:    %s\n", a.fp32 ? "fp32" : "bf16");
  printf("kernels:      %s\n", kernels::cuda::HaveKernels() ? "fedshard's" : "LibTorch's only");
  printf("parameters:   %.1f M, %ld layers, T = %ld, B = %ld\n",
         static_cast<double>(engine.parameters()) * 1e-6, static_cast<long>(a.layers),
         static_cast<long>(a.sequence), static_cast<long>(a.batch));
  printf("step:         %.1f ms (median of %ld; %.1f to %.1f)\n", median * 1e3,
         static_cast<long>(a.steps), seconds.front() * 1e3, seconds.back() * 1e3);
  printf("tokens/s:     %.0f\n", tokens / median);
  printf("model FLOP/s: %.1f T\n", flops * 1e-12);
  if (peak > 0) {
    printf("MFU:          %.1f %% of %.0f TFLOP/s\n", 100 * flops / peak, peak * 1e-12);
  } else {
    printf("MFU:          peak of this GPU not known here, pass --peak\n");
  }
  printf("peak memory:  %.2f GiB\n", static_cast<double>(memory) / (1 << 30));
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, arguments)) {
    fputs(kUsage, stderr);
    return 2;
  }
  try {
    collective::RequireGpu(0);
    Measure(arguments);
  } catch (const collective::CommError& error) {
    fprintf(stderr, "bench_gpu_step: %s\n", error.what());
    return 1;
  } catch (const c10::Error& error) {
    fprintf(stderr, "bench_gpu_step: %s\n", error.what_without_backtrace());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace fedshard::bench

int main(int argc, char** argv) { return fedshard::bench::Main(argc, argv); }
