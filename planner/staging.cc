#include "planner/staging.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace fedshard::planner {
namespace {

// First fit, as LinkComm::TakeStaging.
class Pool {
 public:
  int64_t Take(int64_t size) {
    const auto fits =
        std::find_if(free_.begin(), free_.end(), [size](int64_t buffer) { return buffer >= size; });
    if (fits == free_.end()) {
      total_ += size;
      return size;
    }
    const int64_t found = *fits;
    free_.erase(fits);
    return found;
  }
  void Return(int64_t buffer) { free_.push_back(buffer); }
  int64_t total() const { return total_; }

 private:
  std::vector<int64_t> free_;
  int64_t total_ = 0;
};

// As GradientReducer: units alternate between two slots, a tied embedding has a third.
class Slots {
 public:
  Slots(Pool& pool, bool tied) : pool_(pool), tied_(tied) {}

  void Reduce(size_t unit, int64_t size) {
    int64_t& held = held_[tied_ && unit == 0 ? 2 : unit % 2];
    Settle(held);
    held = pool_.Take(size);
  }
  void Finish() {
    for (int64_t& held : held_) Settle(held);
  }

 private:
  void Settle(int64_t& held) {
    if (held > 0) pool_.Return(held);
    held = 0;
  }

  Pool& pool_;
  const bool tied_;
  std::array<int64_t, 3> held_ = {};
};

}  // namespace

int64_t StagingElements(const ReduceOrder& order, int ranks) {
  if (ranks == 1) return 0;
  Pool pool;
  Slots slots(pool, order.tied);
  // The pool does not grow any more after a few rounds.
  for (int step = 0; step < 4; ++step) {
    for (int64_t scatter = 0; scatter < std::min<int64_t>(order.scatters, 8); ++scatter) {
      for (size_t unit = order.parts.size(); unit-- > 0;) {
        slots.Reduce(unit, order.parts[unit] * (ranks - 1));
      }
    }
    slots.Finish();
  }
  return pool.total();
}

}  // namespace fedshard::planner
