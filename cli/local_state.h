// Where `local up` leaves word of the cluster that it started, for `local down` and as the default
// coordinator.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace fedshard::cli {

struct LocalState {
  std::string address;
  std::string metrics_address;
  std::string directory;
  pid_t pid = 0;            // Of the process that holds the cluster.
  int64_t start_ticks = 0;  // Its start time: a pid alone may have been reused.
};

// $XDG_STATE_HOME/fedshard/local.json, else ~/.local/state/fedshard/local.json.
std::string LocalStatePath();
absl::Status WriteLocalState(const LocalState& state);
// The running local cluster; nothing when there is none (a stale file is removed).
std::optional<LocalState> ReadLocalState();
void RemoveLocalState();
// Start time of a process in clock ticks since boot (/proc/PID/stat, field 22); 0 when there is no
// such process.
int64_t StartTicks(pid_t pid);

}  // namespace fedshard::cli
