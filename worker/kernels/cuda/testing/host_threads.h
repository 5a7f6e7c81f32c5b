// A thread block on the CPU, for tests of the kernels' row code without a GPU: every lane is a
// fibre, and one runs on until it has to wait for others. So the runs are the same every time, and
// the two orders, first lane first and last lane first, are the extremes between which a GPU is: a
// missing Sync() shows as a difference.
#pragma once

#include <ucontext.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

namespace fedshard::kernels::cuda {

class HostBlock {
 public:
  // What the row code gets as its `Threads`, see lanes.h.
  class Threads {
   public:
    Threads(HostBlock& block, int lane) : block_(block), lane_(lane) {}
    int lane() const { return lane_; }
    int lanes() const { return static_cast<int>(block_.lanes_.size()); }
    float Shuffle(float x, int mask) {
      block_.slots_[lane_] = x;
      block_.Wait(lane_, State::kAtWarp);
      const float other = block_.slots_[lane_ ^ mask];
      block_.Wait(lane_, State::kAtWarp);
      return other;
    }
    void Sync() { block_.Wait(lane_, State::kAtBlock); }
    float* shared() { return block_.shared_; }

   private:
    HostBlock& block_;
    const int lane_;
  };
  using Body = std::function<void(Threads&)>;

  // Runs `body` once in each of `lanes` lanes. Throws when they do not meet at the same points.
  static void Run(int lanes, bool last_first, const Body& body) {
    HostBlock block(lanes, last_first, body);
    block.Schedule();
  }

 private:
  static constexpr size_t kStackBytes = 64 << 10;
  static constexpr int kWarpLanes = 32;
  enum class State { kReady, kAtWarp, kAtBlock, kDone };
  struct Lane {
    State state = State::kReady;
    ucontext_t context = {};
    std::unique_ptr<char[]> stack;
  };

  HostBlock(int lanes, bool last_first, const Body& body)
      : body_(body), last_first_(last_first), lanes_(lanes), slots_(lanes) {
    for (int i = 0; i < lanes; ++i) {
      Lane& lane = lanes_[i];
      lane.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
      getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.get();
      lane.context.uc_stack.ss_size = kStackBytes;
      lane.context.uc_link = &scheduler_;
      const auto self = reinterpret_cast<uintptr_t>(this);
      makecontext(&lane.context, reinterpret_cast<void (*)()>(&Enter), 3,
                  static_cast<unsigned>(self >> 32), static_cast<unsigned>(self), i);
    }
  }

  static void Enter(unsigned high, unsigned low, int lane) {
    auto* block =
        reinterpret_cast<HostBlock*>((static_cast<uintptr_t>(high) << 32) | uintptr_t{low});
    Threads threads(*block, lane);
    block->body_(threads);
    block->lanes_[lane].state = State::kDone;
  }

  void Wait(int lane, State state) {
    lanes_[lane].state = state;
    swapcontext(&lanes_[lane].context, &scheduler_);
  }

  void Schedule() {
    const int count = static_cast<int>(lanes_.size());
    for (;;) {
      ReleaseWarps();
      int next = -1;
      for (int i = 0; i < count && next < 0; ++i) {
        const int lane = last_first_ ? count - 1 - i : i;
        if (lanes_[lane].state == State::kReady) next = lane;
      }
      if (next >= 0) {
        swapcontext(&scheduler_, &lanes_[next].context);
      } else if (All(0, count, State::kDone)) {
        return;
      } else if (All(0, count, State::kAtBlock)) {
        for (Lane& lane : lanes_) lane.state = State::kReady;
      } else {
        throw std::logic_error("the lanes of a block wait for each other at different points");
      }
    }
  }

  // At once, so that a warp can be as far ahead of the others as on a GPU.
  void ReleaseWarps() {
    for (int warp = 0; warp < static_cast<int>(lanes_.size()); warp += kWarpLanes) {
      if (!All(warp, warp + kWarpLanes, State::kAtWarp)) continue;
      for (int i = warp; i < warp + kWarpLanes; ++i) lanes_[i].state = State::kReady;
    }
  }

  bool All(int begin, int end, State state) const {
    for (int i = begin; i < end; ++i) {
      if (lanes_[i].state != state) return false;
    }
    return true;
  }

  const Body& body_;
  const bool last_first_;
  std::vector<Lane> lanes_;
  std::vector<float> slots_;
  float shared_[kWarpLanes] = {};
  ucontext_t scheduler_ = {};
};

}  // namespace fedshard::kernels::cuda
