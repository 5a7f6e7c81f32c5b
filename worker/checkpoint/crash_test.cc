// Killed at any moment, writers leave only whole checkpoints under checkpoint names, and the next
// life goes on from there. When the kills hit is chance; that everything listed verifies is not.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/testing/fake_state.h"

namespace fedshard::checkpoint {
namespace {

using fedshard::testing::IsOk;
using testing::StateOptions;

constexpr int kLives = 25;

// Values depend on the step, so that a mixture of two checkpoints is no checkpoint.
StateOptions StateAt(int64_t step) {
  StateOptions state;
  state.mesh = {1, 1, 2};
  state.moments = {"first_moment"};
  state.step = step;
  state.salt = step;
  return state;
}

WriteResult WriteStep(const std::string& directory, int64_t step, int life) {
  return testing::WriteAll(directory, StateAt(step), [&](WriterOptions& options) {
    options.attempt = absl::StrCat("life-", life);
    options.keep = 2;
  });
}

int64_t NewestStep(const std::string& directory) {
  const auto entries = ListCheckpoints(directory);
  return entries.ok() && !entries->empty() ? entries->front().step : 0;
}

// Each step twice, so that checkpoints are replaced too.
[[noreturn]] void WriteForEver(const std::string& directory, int life) {
  while (true) {
    const int64_t step = NewestStep(directory) + 1;
    for (int time = 0; time < 2; ++time) {
      if (!WriteStep(directory, step, life).error.empty()) _exit(1);
    }
  }
}

void ExpectAllGood(const std::string& directory) {
  const auto entries = ListCheckpoints(directory);
  ASSERT_THAT(entries, IsOk());
  EXPECT_LE(entries->size(), 3u);  // `keep`, and the newest before the old ones go.
  for (const CheckpointEntry& entry : *entries) {
    const auto reader = CheckpointReader::Open(entry.path);
    ASSERT_THAT(reader, IsOk());
    EXPECT_EQ((*reader)->manifest().step, entry.step);
    EXPECT_THAT((*reader)->Verify(), IsOk());
    EXPECT_THAT(testing::CheckAs(**reader, StateAt(entry.step), {1, 1, 3}), IsOk());
  }
}

TEST(Crash, KilledAtAnyMoment) {
  const fedshard::testing::TempDir dir;
  std::mt19937 random(std::random_device{}());
  ASSERT_EQ(WriteStep(dir.path(), 1, 1000).error, "");
  int64_t newest = 1;
  for (int life = 0; life < kLives; ++life) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WriteForEver(dir.path(), life);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200'000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "a write failed";
    ExpectAllGood(dir.path());
    // Never back behind what was complete.
    EXPECT_GE(NewestStep(dir.path()), newest);
    newest = NewestStep(dir.path());
  }
  RecordProperty("checkpoints", static_cast<int>(newest));
  // The next life tidies up.
  ASSERT_EQ(WriteStep(dir.path(), newest + 1, kLives).error, "");
  const std::vector<std::string> names = NamesIn(dir.path()).value();
  for (const std::string& name : names) {
    EXPECT_TRUE(StepOfName(name).has_value()) << name;
  }
  ExpectAllGood(dir.path());
  EXPECT_EQ(NewestStep(dir.path()), newest + 1);
}

}  // namespace
}  // namespace fedshard::checkpoint
