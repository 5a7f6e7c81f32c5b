// Picks a token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace fedshard::trainer {

// Temperature 0: the largest logit (the first of equals). Otherwise one draw from softmax(logits /
// temperature). The engine's raw output is specified by the standard, so the same seed gives the
// same tokens everywhere.
uint32_t PickToken(const std::vector<float>& logits, double temperature, std::mt19937_64& random);

}  // namespace fedshard::trainer
