// Picks a token from logits. Stateless.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace fedshard::trainer {

struct Sampling {
  double temperature = 0;  // 0: the largest logit (the first of equals).
  // Only the likeliest tokens that have this probability together take part (nucleus sampling): as
  // few as possible, at least one; of equally likely ones those with the lower numbers. 1 = all.
  double top_p = 1;
};

// One draw from softmax(logits / temperature), restricted to the nucleus. Nothing is drawn from
// `random` at temperature 0. The generator's raw output is specified by the standard, so the same
// seed gives the same tokens everywhere.
uint32_t PickToken(const std::vector<float>& logits, const Sampling& sampling,
                   std::mt19937_64& random);

}  // namespace fedshard::trainer
