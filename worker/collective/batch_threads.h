// While it lives, threads that the calling thread starts are scheduled as SCHED_BATCH: with the
// same share of the CPU as others, but never taking it away from a thread that runs when they wake.
//
// For Gloo's loop threads. They wake with every packet, and a pair's events are handled under a
// lock that the training thread holds while it sends: woken in the middle of that, on the same
// core, the loop spins on the lock through its whole time slice. docs/benchmarks.md has the figures
// (a step of small messages is several times faster this way). Where the policy cannot be set,
// nothing changes.
#pragma once

#include <sched.h>

namespace fedshard::collective {

class BatchThreads {
 public:
  BatchThreads() : policy_(sched_getscheduler(0)) {
    if (policy_ == SCHED_OTHER) Set(SCHED_BATCH);
  }
  ~BatchThreads() {
    if (policy_ == SCHED_OTHER) Set(SCHED_OTHER);
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  static void Set(int policy) {
    const sched_param none = {};
    sched_setscheduler(0, policy, &none);  // Of this thread alone; needs no privilege.
  }

  const int policy_;
};

}  // namespace fedshard::collective
