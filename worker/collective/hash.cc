#include "worker/collective/hash.h"

#include <cstring>

namespace fedshard::collective {
namespace {

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, odd.
constexpr int kLanes = 4;

// Finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t LoadWord(const unsigned char* bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

// One step of a lane: invertible in `word` for a fixed lane, so a changed word always changes the
// lane.
uint64_t Absorb(uint64_t lane, uint64_t word) {
  lane = (lane ^ word) * kMultiplier;
  return lane ^ (lane >> 32);
}

}  // namespace

uint64_t Fingerprint64(const void* data, size_t bytes, uint64_t seed) {
  const auto* at = static_cast<const unsigned char*>(data);
  // Independent lanes keep the multiplier busy.
  uint64_t lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = Mix(seed + kMultiplier * (i + 1));
  size_t left = bytes;
  for (; left >= 8 * kLanes; left -= 8 * kLanes, at += 8 * kLanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] = Absorb(lanes[i], LoadWord(at + 8 * i));
  }
  uint64_t hash = Mix(bytes + kMultiplier);
  for (const uint64_t lane : lanes) hash = Mix(hash ^ lane) * kMultiplier;
  for (; left >= 8; left -= 8, at += 8) hash = Absorb(hash, LoadWord(at));
  if (left > 0) {
    unsigned char last[8] = {};
    memcpy(last, at, left);
    hash = Absorb(hash, LoadWord(last));
  }
  return Mix(hash);
}

}  // namespace fedshard::collective
