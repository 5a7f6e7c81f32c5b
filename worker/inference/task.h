// What every rank of a run of fedshard-model is told, in a file of the run's private folder. Plain
// data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/trainer/sampling.h"

namespace fedshard::inference {

// The windows [0, windows) of a token file; window w predicts tokens [w*T + 1, (w+1)*T].
struct EvaluationPlan {
  std::string data;
  int64_t sequence_length = 0;  // T
  int64_t windows = 0;
  int64_t micro_batch = 1;  // Windows computed at once.
};

struct GenerationPlan {
  std::vector<int64_t> prompt;
  int64_t tokens = 0;  // To add, at most.
  int32_t samples = 1;
  trainer::Sampling sampling;
  uint64_t seed = 0;                 // Of sample 0; sample i has seed + i.
  std::vector<int64_t> stop_tokens;  // End a text, without being part of it.
};

struct RankTask {
  std::string folder;  // Private to the run: rendezvous and error messages.
  std::string model;   // The folder of the checkpoint or of the Hugging Face model.
  int32_t ranks = 1;
  int32_t threads = 1;    // Of each rank.
  int32_t timeout_s = 0;  // Of every wait of a rank for the others.
  bool generates = false;
  EvaluationPlan evaluation;  // When it does not generate.
  GenerationPlan generation;  // When it does.
};

std::string ToJson(const RankTask& task);
// INVALID_ARGUMENT.
absl::StatusOr<RankTask> ParseTask(const std::string& json);

}  // namespace fedshard::inference
