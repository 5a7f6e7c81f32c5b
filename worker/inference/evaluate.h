// Evaluates windows of a token file, spread over the ranks of a shard group. Stateless.
#pragma once

#include <cstdint>
#include <functional>

#include "worker/collective/comm.h"
#include "worker/data/token_file.h"
#include "worker/engine/inference_engine.h"
#include "worker/inference/task.h"

namespace fedshard::inference {

// The sum over all windows; the same bits on every rank and for every number of ranks, because each
// window is computed whole, in the same micro-batch, and losses are added in the order of windows.
// Collective. `progress`: about how many windows are done, after each call of the engine. Throws
// std::runtime_error naming the windows whose loss is not finite, on every rank.
engine::LossSum EvaluateWindows(engine::InferenceEngine& engine, collective::Comm& comm,
                                const data::TokenFile& tokens, const EvaluationPlan& plan,
                                const std::function<void(int64_t windows)>& progress);

}  // namespace fedshard::inference
