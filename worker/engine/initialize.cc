#include "worker/engine/initialize.h"

#include <cmath>
#include <numbers>

#include "worker/collective/hash.h"

namespace fedshard::engine {
namespace {

// The output function of SplitMix64: position `counter` of the stream `key`.
uint64_t RandomBits(uint64_t key, uint64_t counter) {
  uint64_t z = key + (counter + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// In (0, 1].
double Uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 1) * 0x1p-53; }

}  // namespace

void FillNormal(uint64_t seed, const std::string& name, double deviation, int64_t begin,
                int64_t count, float* out) {
  const uint64_t key = collective::Fingerprint64(name.data(), name.size(), seed);
  const int64_t end = begin + count;
  // Box-Muller makes elements in pairs (2p, 2p + 1); an interval may begin or end inside one.
  for (int64_t pair = begin / 2; pair * 2 < end; ++pair) {
    const double radius = deviation * std::sqrt(-2 * std::log(Uniform(RandomBits(key, 2 * pair))));
    const double angle = 2 * std::numbers::pi * Uniform(RandomBits(key, 2 * pair + 1));
    if (2 * pair >= begin) out[2 * pair - begin] = static_cast<float>(radius * std::cos(angle));
    if (2 * pair + 1 < end) {
      out[2 * pair + 1 - begin] = static_cast<float>(radius * std::sin(angle));
    }
  }
}

}  // namespace fedshard::engine
