#include "worker/engine/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fedshard::engine {

double LearningRateSchedule::At(int64_t tokens, int64_t tokens_per_step) const {
  const int64_t reached = tokens + tokens_per_step;
  if (reached < warmup_tokens) {
    return peak * static_cast<double>(reached) / static_cast<double>(warmup_tokens);
  }
  if (type == Type::kConstant || total_tokens <= warmup_tokens) return peak;
  const double progress = std::min(1.0, static_cast<double>(reached - warmup_tokens) /
                                            static_cast<double>(total_tokens - warmup_tokens));
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return peak * (final_ratio + (1 - final_ratio) * cosine);
}

}  // namespace fedshard::engine
