// Proves that an operation that does not end is reported once its time is over, and not before;
// that a failing or throwing probe is reported once; that a removed probe is asked no more; and
// that the process ends at once and says why.
#include "worker/collective/failure_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "common/trainer_exit.h"

namespace fedshard::collective {
namespace {

using std::chrono::milliseconds;

// What the watch reported, and how often.
class Reports {
 public:
  void Add(const std::string& why) {
    MutexLock lock(mu_);
    why_ = why;
    ++count_;
    changed_.NotifyAll();
  }
  std::string Await() {
    MutexLock lock(mu_);
    while (count_ == 0) {
      if (!changed_.WaitFor(mu_, std::chrono::seconds(30))) return "nothing reported";
    }
    return why_;
  }
  int count() {
    MutexLock lock(mu_);
    return count_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::string why_ GUARDED_BY(mu_);
  int count_ GUARDED_BY(mu_) = 0;
};

TEST(PendingOperations, OnlyTheOldestUnfinishedOneCounts) {
  PendingOperations pending(milliseconds(100));
  const auto start = PendingOperations::Clock::time_point();
  bool gathered = false;
  pending.Started("all-gather", start, [&] { return gathered; });
  pending.Started("reduce-scatter", start + milliseconds(50), [] { return false; });
  EXPECT_EQ(pending.Overdue(start + milliseconds(100)), std::nullopt);
  EXPECT_EQ(pending.Overdue(start + milliseconds(101)), "all-gather did not end within 100 ms");
  gathered = true;
  EXPECT_EQ(pending.Overdue(start + milliseconds(150)), std::nullopt);
  EXPECT_EQ(pending.Overdue(start + milliseconds(151)), "reduce-scatter did not end within 100 ms");
}

TEST(PendingOperations, LetsGoOfWhatIsDone) {
  PendingOperations pending(milliseconds(1));
  const auto event = std::make_shared<int>();
  pending.Started("all-gather", {}, [event] { return true; });
  EXPECT_EQ(event.use_count(), 2);
  EXPECT_EQ(pending.Overdue({}), std::nullopt);
  EXPECT_EQ(event.use_count(), 1);
}

TEST(FailureWatch, ReportsAFailureOnce) {
  Reports reports;
  std::atomic<int> asked = 0;
  {
    FailureWatch watch(milliseconds(1), [&](const std::string& why) { reports.Add(why); });
    watch.Add([&]() -> std::optional<std::string> {
      return ++asked < 3 ? std::nullopt : std::optional<std::string>("peer 2 is gone");
    });
    EXPECT_EQ(reports.Await(), "peer 2 is gone");
  }
  EXPECT_EQ(reports.count(), 1);
  EXPECT_EQ(asked, 3);
}

TEST(FailureWatch, AThrowingProbeIsAFailure) {
  Reports reports;
  FailureWatch watch(milliseconds(1), [&](const std::string& why) { reports.Add(why); });
  watch.Add([]() -> std::optional<std::string> { throw std::runtime_error("bad event"); });
  EXPECT_EQ(reports.Await(), "bad event");
}

TEST(FailureWatch, ARemovedProbeIsAskedNoMore) {
  Reports reports;
  std::atomic<bool> removed = false;
  FailureWatch watch(milliseconds(1), [&](const std::string& why) { reports.Add(why); });
  const int id = watch.Add([&]() -> std::optional<std::string> {
    return removed ? std::optional<std::string>("asked after removal") : std::nullopt;
  });
  watch.Remove(id);
  removed = true;
  watch.Add([]() -> std::optional<std::string> { return "the other one"; });
  EXPECT_EQ(reports.Await(), "the other one");
}

TEST(FailNccl, EndsTheProcessFromTheWatchsThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        FailureWatch watch(milliseconds(1), FailNccl);
        watch.Add([]() -> std::optional<std::string> { return "gather: timed out"; });
        for (;;) pause();
      },
      ::testing::ExitedWithCode(kExitNccl), "NCCL: gather: timed out; exiting");
}

}  // namespace
}  // namespace fedshard::collective
