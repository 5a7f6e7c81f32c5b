// Proves that threads started under BatchThreads, Gloo's among them, are SCHED_BATCH, and that the
// starting thread is as it was.
#include "worker/collective/batch_threads.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "worker/collective/group_factory.h"
#include "worker/collective/store_adapter.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::collective {
namespace {

TEST(BatchThreads, ConcernWhatIsStartedUnderIt) {
  int inside = -1, after = -1;
  {
    const BatchThreads batch;
    std::thread([&] { inside = sched_getscheduler(0); }).join();
  }
  std::thread([&] { after = sched_getscheduler(0); }).join();
  EXPECT_EQ(inside, SCHED_BATCH);
  EXPECT_EQ(after, SCHED_OTHER);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

TEST(BatchThreads, AreThoseOfAGlooGroup) {
  auto rendezvous = std::make_shared<MemoryKeyValue>();
  RunRanks(2, [&](int rank) {
    const auto store = MakeStore(rendezvous, std::chrono::seconds(30));
    const MeshComms comms = ConnectMesh({1, 1, 2}, rank, store, store, {});
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    int batch = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      batch += sched_getscheduler(atoi(entry.path().filename().c_str())) == SCHED_BATCH;
    }
    EXPECT_GT(batch, 0);
    comms.shard->AllGatherWords({1});  // Both have looked before either group goes away.
  });
}

}  // namespace
}  // namespace fedshard::collective
