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

  // `tokens`: committed by all groups before the step. Linear warm-up reaches `peak` at warmup_tokens; the first step
  // of a warm-up does not have rate 0: the step's own tokens_per_step are counted in.
  double At(int64_t tokens, int64_t tokens_per_step) const;
};

}  // namespace fedshard::engine
