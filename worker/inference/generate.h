// Continues a prompt, token by token, with a key-value cache. Stateless.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/collective/comm.h"
#include "worker/engine/inference_engine.h"
#include "worker/inference/task.h"

namespace fedshard::inference {

// Calls `see` on every rank with the next token of each sample, -1 for samples that have ended at a
// stop token, until all have or `plan.tokens` are there; the first call comes when the prompt is
// read. Collective; the first rank draws. The engine must take prompt + tokens.
void Generate(engine::InferenceEngine& engine, collective::Comm& comm, const GenerationPlan& plan,
              const std::function<void(const std::vector<int64_t>&)>& see);

}  // namespace fedshard::inference
