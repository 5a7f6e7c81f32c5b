// Learning rate as a function of committed tokens.
#pragma once

#include <cstdint>

namespace fedshard::engine {

struct LearningRateSchedule {
  enum class Type { kConstant, kCosine };
  Type type = Type::kConstant;
  double peak = 0;
  int64_t warmup_tokens = 0;
  int64_t total_tokens = 0;
  double final_ratio = 0;

  // Rate of a step that starts when all groups together have committed `tokens`. The step's own
  // tokens_per_step count as reached: the first step of a warm-up is not wasted at rate 0, the step
  // that completes warmup_tokens has `peak`, and the cosine ends at total_tokens with peak *
  // final_ratio.
  double At(int64_t tokens, int64_t tokens_per_step) const;
};

}  // namespace fedshard::engine
