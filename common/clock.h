// Time as the project uses it: durations and timeouts from a steady clock, wall time only to show
// people.
#pragma once

#include <cstdint>

namespace fedshard {

// One moment on both clocks, in microseconds. Decisions use `steady_us` alone.
struct Instant {
  int64_t steady_us = 0;
  int64_t wall_us = 0;  // Since the Unix epoch.
};

// Source of time, so that tests can own it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
};

// The machine's clocks.
class SystemClock : public Clock {
 public:
  Instant Now() const override;
};

// Stands still until told to advance.
class FakeClock : public Clock {
 public:
  Instant Now() const override { return now_; }
  void Advance(int64_t us) {
    now_.steady_us += us;
    now_.wall_us += us;
  }

 private:
  Instant now_{1'000'000, 1'700'000'000'000'000};
};

}  // namespace fedshard
