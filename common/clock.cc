#include "common/clock.h"

#include <chrono>

namespace fedshard {

Instant SystemClock::Now() const {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  return {duration_cast<microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(),
          duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()).count()};
}

}  // namespace fedshard
