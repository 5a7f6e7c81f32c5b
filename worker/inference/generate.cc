#include "worker/inference/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <random>

#include "worker/trainer/sampling.h"

namespace fedshard::inference {
namespace {

// The prompt is computed once; its keys and values are then copied for every sample.
at::Tensor ReadPrompt(engine::InferenceEngine& engine, const GenerationPlan& plan,
                      engine::KeyValueCache& cache) {
  const int64_t length = static_cast<int64_t>(plan.prompt.size());
  engine::KeyValueCache of_prompt = engine.MakeCache(1, length);
  const at::Tensor logits =
      engine.Decode(at::tensor(plan.prompt, at::kLong).unsqueeze(0), of_prompt);
  cache.keys.narrow(3, 0, length).copy_(of_prompt.keys);
  cache.values.narrow(3, 0, length).copy_(of_prompt.values);
  cache.length = length;
  return logits.expand({plan.samples, logits.size(1)}).contiguous();
}

}  // namespace

void Generate(engine::InferenceEngine& engine, collective::Comm& comm, const GenerationPlan& plan,
              const std::function<void(const std::vector<int64_t>&)>& see) {
  std::vector<std::mt19937_64> random;
  for (int32_t i = 0; i < plan.samples; ++i) {
    random.emplace_back(plan.seed + static_cast<uint64_t>(i));
  }
  engine::KeyValueCache cache =
      engine.MakeCache(plan.samples, static_cast<int64_t>(plan.prompt.size()) + plan.tokens);
  at::Tensor logits = ReadPrompt(engine, plan, cache);
  std::vector<int64_t> next(plan.samples, 0);
  for (int64_t step = 0; step < plan.tokens; ++step) {
    std::vector<uint64_t> picked(plan.samples, 0);
    for (int32_t i = 0; i < plan.samples && comm.rank() == 0; ++i) {
      const float* row = logits.const_data_ptr<float>() + i * logits.size(1);
      if (next[i] >= 0) {
        picked[i] = trainer::PickToken({row, row + logits.size(1)}, plan.sampling, random[i]);
      }
    }
    // The first rank's choice holds, whatever CPU the others have.
    picked = comm.AllGatherWords(picked)[0];
    for (int32_t i = 0; i < plan.samples; ++i) {
      const int64_t token = static_cast<int64_t>(picked[i]);
      const bool stops = std::count(plan.stop_tokens.begin(), plan.stop_tokens.end(), token) > 0;
      next[i] = next[i] < 0 || stops ? -1 : token;
    }
    see(next);
    if (std::all_of(next.begin(), next.end(), [](int64_t token) { return token < 0; })) return;
    if (step + 1 == plan.tokens) return;
    // Samples that have ended go on with any token, unseen.
    logits = engine.Decode(at::tensor(next, at::kLong).clamp_min(0).unsqueeze(1), cache);
  }
}

}  // namespace fedshard::inference
