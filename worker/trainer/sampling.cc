#include "worker/trainer/sampling.h"

#include <algorithm>
#include <cmath>

namespace fedshard::trainer {

uint32_t PickToken(const std::vector<float>& logits, double temperature, std::mt19937_64& random) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<uint32_t>(largest - logits.begin());
  std::vector<double> weights(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - *largest) / temperature);
    total += weights[i];
  }
  double left = static_cast<double>(random() >> 11) * 0x1p-53 * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<uint32_t>(i);
  }
  return static_cast<uint32_t>(largest - logits.begin());  // Rounding ate the last bit.
}

}  // namespace fedshard::trainer
