// A call's deadline on the service's clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace fedshard::rpc {

// No call waits longer than this, whatever its deadline says.
inline constexpr int64_t kMaxWaitUs = 600'000'000;

// The steady time at which the call must be answered. `Context` is a server context of gRPC, whose
// deadlines are wall times.
template <typename Context>
int64_t DeadlineUs(const Context& context, Instant now) {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  const auto left = context.deadline() - std::chrono::system_clock::now();
  // The infinite deadline is the end of the clock's range: compare before converting.
  if (left > microseconds(kMaxWaitUs)) return now.steady_us + kMaxWaitUs;
  return now.steady_us + std::max<int64_t>(0, duration_cast<microseconds>(left).count());
}

}  // namespace fedshard::rpc
