// What survivors see when a peer process is killed or stopped: Abort() from another thread ends
// every wait, also in the middle of a large message, which Gloo itself does not notice; and the
// survivor can make a new group under a new prefix.
//
// The peer is this same binary, started with FEDSHARD_PEER set (never forked with LibTorch loaded),
// over a FileStore.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "worker/collective/group_factory.h"
#include "worker/collective/self_comm.h"

extern char** environ;

namespace fedshard::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Far above what any case needs: a wait that ends by it fails the test.
constexpr milliseconds kGroupTimeout = seconds(100);
constexpr milliseconds kSoon = seconds(30);
constexpr int64_t kLarge = 2 * 16 * 1024 * 1024;  // Elements: 64 MiB from each of two ranks.

MeshComms Connect(const std::string& folder, int rank, int ranks, const std::string& generation) {
  auto store = c10::make_intrusive<c10d::FileStore>(folder + "/" + generation, ranks);
  GroupOptions options;
  options.timeout = kGroupTimeout;
  return ConnectMesh({1, 1, ranks}, rank, store, store, options);
}

// The peer: gathers for ever, and says when it has begun.
int RunPeer(const std::string& folder) {
  MeshComms comms = Connect(folder, 1, 2, "first");
  at::Tensor full = at::ones({kLarge});
  for (int i = 0;; ++i) {
    comms.shard->AllGather(full).Wait();
    if (i == 0) std::ofstream(folder + "/streaming") << "yes";
  }
}

class GlooFailure : public ::testing::Test {
 protected:
  GlooFailure() {
    std::string path = "/tmp/fedshard-gloo-XXXXXX";
    folder_ = mkdtemp(path.data());
    setenv("FEDSHARD_PEER", folder_.c_str(), 1);
    char* argv[] = {const_cast<char*>("peer"), nullptr};
    EXPECT_EQ(posix_spawn(&peer_, "/proc/self/exe", nullptr, nullptr, argv, environ), 0);
    unsetenv("FEDSHARD_PEER");
  }
  ~GlooFailure() override {
    kill(peer_, SIGKILL);
    waitpid(peer_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }

  // Gathers with the peer until it fails, while another thread sends the signal and then aborts, as
  // the trainer's control thread does. Returns how long after the abort the last wait ended.
  milliseconds GatherUntilAborted(int signal) {
    MeshComms comms = Connect(folder_, 0, 2, "first");
    std::atomic<bool> ended = false;
    steady_clock::time_point aborted;
    std::thread watcher([&] {
      while (!std::filesystem::exists(folder_ + "/streaming"))
        std::this_thread::sleep_for(milliseconds(5));
      kill(peer_, signal);
      comms.Abort();
      aborted = steady_clock::now();
    });
    at::Tensor full = at::ones({kLarge});
    EXPECT_THROW(while (true) comms.shard->AllGather(full).Wait(), CommError);
    const auto end = steady_clock::now();
    watcher.join();
    EXPECT_THROW(comms.shard->AllGather(full).Wait(), CommError);
    return std::chrono::duration_cast<milliseconds>(end - aborted);
  }

  std::string folder_;
  pid_t peer_ = 0;
};

TEST_F(GlooFailure, AbortEndsTheWaitForAKilledPeer) {
  EXPECT_LT(GatherUntilAborted(SIGKILL), kSoon);
}

TEST_F(GlooFailure, AbortEndsTheWaitForAStoppedPeer) {
  EXPECT_LT(GatherUntilAborted(SIGSTOP), kSoon);
}

TEST_F(GlooFailure, SurvivorMakesANewGroup) {
  GatherUntilAborted(SIGKILL);
  std::thread other([&] {
    MeshComms comms = Connect(folder_, 1, 2, "second");
    EXPECT_EQ(comms.shard->AllGatherScalars({1})[0][0], 7);
  });
  MeshComms comms = Connect(folder_, 0, 2, "second");
  EXPECT_EQ(comms.shard->AllGatherScalars({7})[1][0], 1);
  other.join();
}

}  // namespace

int PeerMain(const char* folder) { return RunPeer(folder); }

}  // namespace fedshard::collective

int main(int argc, char** argv) {
  if (const char* folder = getenv("FEDSHARD_PEER")) return fedshard::collective::PeerMain(folder);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
