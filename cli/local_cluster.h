// A coordinator and workers on this machine, in a folder of their own, on ports that they bind
// themselves. Owned by `local run` and `local up`; everything is stopped and reaped when it is
// destroyed. Must be started from a thread that lives as long as the process (the children die with
// it).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/subprocess.h"

namespace fedshard::cli {

struct LocalClusterOptions {
  int nodes = 2;
  int slots = 4;          // Per node.
  std::string directory;  // Logs and data; made when missing.
};

class LocalCluster {
 public:
  // Starts everything and waits until all workers are registered, or `canceled` says to give up
  // (CANCELLED). Errors carry the last line of the log of what failed.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalClusterOptions& options,
                                                             const std::function<bool()>& canceled);
  ~LocalCluster();

  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  // Of a job, once it ran.
  std::string StepsFile(const std::string& job) const;

 private:
  explicit LocalCluster(const LocalClusterOptions& options) : options_(options) {}
  absl::Status StartCoordinator(const std::function<bool()>& canceled);
  absl::Status StartWorker(int node);
  absl::Status AwaitWorkers(const std::function<bool()>& canceled);

  const LocalClusterOptions options_;
  std::string run_directory_;  // Sockets; removed at the end.
  std::string address_;
  std::string metrics_address_;
  std::unique_ptr<Subprocess> coordinator_;
  std::vector<std::unique_ptr<Subprocess>> workers_;
};

// Folder of this executable: the other binaries are beside it.
std::string BinaryDirectory();

}  // namespace fedshard::cli
