// The processes of a run: started, listened to, and gone when RunRanks returns, whatever happens.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/inference/task.h"

namespace fedshard::inference {

// A folder of this run's own that is removed at the end.
class PrivateFolder {
 public:
  static absl::StatusOr<PrivateFolder> Make();
  PrivateFolder(PrivateFolder&& other) noexcept;
  PrivateFolder& operator=(PrivateFolder&&) = delete;
  ~PrivateFolder();
  const std::string& path() const { return path_; }

 private:
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those it starts later, for RunRanks to take,
// and ignores SIGPIPE. Once, at the start of the process.
void BlockSignals();

// Starts task.ranks processes of this binary, calls `see` with each line that the first one writes,
// and waits until all have ended. When one fails, is silent as a group for task.timeout_s, `see`
// returns an error or a signal arrives, the others are ended. The error is that of the rank that
// failed by itself, not of those that lost it; CANCELLED after a signal, DEADLINE_EXCEEDED.
absl::Status RunRanks(const RankTask& task,
                      const std::function<absl::Status(const std::string& line)>& see);

}  // namespace fedshard::inference
