#include "worker/trainer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fedshard::trainer {
namespace {

// Zeroes the weights outside the nucleus; returns the sum of those left.
double KeepNucleus(double top_p, double total, std::vector<double>& weights) {
  std::vector<uint32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return weights[a] > weights[b]; });
  double kept = 0;
  size_t count = 0;
  while (count < order.size() && (count == 0 || kept < top_p * total)) {
    kept += weights[order[count++]];
  }
  for (; count < order.size(); ++count) weights[order[count]] = 0;
  return kept;
}

}  // namespace

uint32_t PickToken(const std::vector<float>& logits, const Sampling& sampling,
                   std::mt19937_64& random) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature <= 0) return static_cast<uint32_t>(largest - logits.begin());
  std::vector<double> weights(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - *largest) / sampling.temperature);
    total += weights[i];
  }
  if (sampling.top_p < 1) total = KeepNucleus(sampling.top_p, total, weights);
  double left = static_cast<double>(random() >> 11) * 0x1p-53 * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<uint32_t>(i);
  }
  return static_cast<uint32_t>(largest - logits.begin());  // Rounding ate the last bit.
}

}  // namespace fedshard::trainer
