// All-gather and reduce-scatter of this project against the ones of ProcessGroupGloo, two processes
// over loopback, interleaved. Prints medians and their ratio.
//   bench_collectives [--repeats 15] [--smoke]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "worker/collective/group_factory.h"

extern char** environ;

namespace fedshard::bench {
namespace {

constexpr int kRanks = 2;

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Both ranks run this; rank 0 prints.
void Run(const std::string& folder, int rank, int repeats, const std::vector<int64_t>& sizes) {
  at::set_num_threads(1);
  auto store = c10::make_intrusive<c10d::FileStore>(folder + "/store", kRanks);
  auto stock_options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  stock_options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  auto stock = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("stock", store), rank, kRanks, stock_options);
  collective::MeshComms comms = collective::ConnectMesh({1, 1, kRanks}, rank, store, store, {});
  collective::Comm& own = *comms.shard;

  if (rank == 0)
    printf(
        "| operation | MiB | own, ms | stock Gloo, ms | stock / own |\n| --- | --- | --- | --- | "
        "--- |\n");
  for (const int64_t mib : sizes) {
    const int64_t elements = mib * 1024 * 1024 / 4, part = elements / kRanks;
    at::Tensor full = at::ones({elements}), shard = at::ones({part}), mine = at::ones({part});
    std::vector<double> times[4];
    for (int i = 0; i < repeats + 2; ++i) {
      const double samples[4] = {
          Seconds([&] { own.AllGather(full).Wait(); }),
          Seconds([&] { stock->_allgather_base(full, mine)->wait(); }),
          Seconds([&] { own.ReduceScatter(full, shard).Wait(); }),
          Seconds([&] { stock->_reduce_scatter_base(shard, full)->wait(); }),
      };
      own.AllGatherScalars({0});  // Start together.
      if (i < 2) continue;        // Warm-up.
      for (int k = 0; k < 4; ++k) times[k].push_back(samples[k] * 1e3);
    }
    if (rank != 0) continue;
    for (const auto& [name, k] : {std::pair{"all-gather", 0}, std::pair{"reduce-scatter", 2}}) {
      printf("| %s | %ld | %.2f | %.2f | %.2f |\n", name, static_cast<long>(mib), Median(times[k]),
             Median(times[k + 1]), Median(times[k + 1]) / Median(times[k]));
    }
  }
}

int Main(int argc, char** argv) {
  int repeats = 15;
  std::vector<int64_t> sizes = {4, 16, 64};
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--smoke") == 0) {
      repeats = 1;
      sizes = {1};
    } else if (strcmp(argv[i], "--repeats") == 0 && i + 1 < argc) {
      repeats = std::max(1, atoi(argv[++i]));
    } else {
      fprintf(stderr, "usage: bench_collectives [--repeats N] [--smoke]\n");
      return 2;
    }
  }
  if (const char* folder = getenv("FEDSHARD_BENCH_PEER")) {
    Run(folder, 1, repeats, sizes);
    return 0;
  }
  std::string folder = "/tmp/fedshard-bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  setenv("FEDSHARD_BENCH_PEER", folder.c_str(), 1);
  pid_t peer = 0;
  if (posix_spawn(&peer, "/proc/self/exe", nullptr, nullptr, argv, environ) != 0) return 1;
  Run(folder, 0, repeats, sizes);
  int status = 0;
  waitpid(peer, &status, 0);
  std::filesystem::remove_all(folder);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fedshard::bench

int main(int argc, char** argv) { return fedshard::bench::Main(argc, argv); }
