#include "worker/data/sampler.h"

namespace fedshard::data {
namespace {

// Finalizer of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A permutation of [0, n) keyed by `key`: a balanced Feistel network over the next power of four
// (Luby and Rackoff 1988), repeated until it lands inside ("cycle walking"). At most four times as
// large, so few repeats; no table, so any n.
uint64_t Permute(uint64_t index, uint64_t n, uint64_t key) {
  int half_bits = 1;
  while ((uint64_t{1} << (2 * half_bits)) < n) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = index >> half_bits, right = index & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (Mix(key ^ Mix(right ^ (round << 56))) & mask);
      left = right;
      right = next;
    }
    index = left << half_bits | right;
  } while (index >= n);
  return index;
}

}  // namespace

Sampler::Sampler(int64_t tokens, int64_t sequence_length, uint64_t seed, Order order)
    : windows_((tokens - 1) / sequence_length),
      sequence_length_(sequence_length),
      seed_(seed),
      order_(order) {}

int64_t Sampler::FirstToken(int64_t index) const {
  const int64_t epoch = index / windows_;
  int64_t window = index % windows_;
  if (order_ == Order::kShuffled) {
    const uint64_t key = Mix(seed_ ^ Mix(static_cast<uint64_t>(epoch)));
    window = static_cast<int64_t>(
        Permute(static_cast<uint64_t>(window), static_cast<uint64_t>(windows_), key));
  }
  return window * sequence_length_;
}

}  // namespace fedshard::data
