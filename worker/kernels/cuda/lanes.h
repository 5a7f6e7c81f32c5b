// What the lanes of one thread block, which work on a row together, share: sums and maxima.
//
// `Threads` is the machine below: DeviceThreads on the GPU (device_threads.h), fibres of the test
// on the CPU. It has
//   int lane() const, lanes() const      lanes() is a multiple of 32, at most 1024
//   float Shuffle(float x, int mask)     the x of lane ^ mask, of the same 32 lanes
//   void Sync()                          all lanes wait for each other
//   float* shared()                      32 floats, seen by all lanes
// All lanes make the same calls in the same order.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/kernels/cuda/elements.h"

namespace fedshard::kernels::cuda {

inline constexpr int kWarp = 32;

struct Add {
  FEDSHARD_KERNEL_CODE float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  FEDSHARD_KERNEL_CODE float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Combines the x of all lanes in a fixed order; every lane gets the same bits. `neutral` is what
// changes nothing.
template <typename Threads, typename Combine>
FEDSHARD_KERNEL_CODE float Reduce(Threads& threads, float x, float neutral, Combine combine) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = combine(x, threads.Shuffle(x, mask));
  if (threads.lanes() == kWarp) return x;
  const int lane = threads.lane();
  float* shared = threads.shared();
  if (lane % kWarp == 0) shared[lane / kWarp] = x;
  threads.Sync();
  x = lane % kWarp < threads.lanes() / kWarp ? shared[lane % kWarp] : neutral;
  threads.Sync();  // So that the next reduction may overwrite it.
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = combine(x, threads.Shuffle(x, mask));
  return x;
}

template <typename Threads>
FEDSHARD_KERNEL_CODE float Sum(Threads& threads, float x) {
  return Reduce(threads, x, 0.0f, Add());
}

template <typename Threads>
FEDSHARD_KERNEL_CODE float Maximum(Threads& threads, float x) {
  return Reduce(threads, x, -INFINITY, Larger());
}

}  // namespace fedshard::kernels::cuda
