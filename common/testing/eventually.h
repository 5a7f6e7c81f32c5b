// Waiting for something that another thread or process does, without a fixed sleep.
#pragma once

#include <chrono>
#include <thread>

namespace fedshard::testing {

// Looks at `condition` until it holds; false when it did not within `timeout`, which should be far
// above what is expected.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace fedshard::testing
