// Who watches which job. A watcher sees its job at once, then again after each change: changes of
// state at once, mere progress a few times a second. Owned by the service; used on the loop thread
// only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/view.h"

namespace fedshard::service {

// Implemented by the RPC adapter. Called on the loop thread; never blocks.
class JobWatcher {
 public:
  virtual ~JobWatcher() = default;
  // `last`: the job has ended and stopped, nothing follows.
  virtual void Show(const View& view, const core::Job& job, bool last) = 0;
  // Nothing follows, because of this error.
  virtual void Fail(const absl::Status& status) = 0;
};

struct WatcherOptions {
  int64_t progress_interval_us = 200'000;
  size_t max_watchers = 1000;
};

class Watchers {
 public:
  explicit Watchers(WatcherOptions options) : options_(options) {}

  // Shows the job now. NOT_FOUND and RESOURCE_EXHAUSTED go to the watcher.
  void Add(const View& view, const core::JobId& job, std::shared_ptr<JobWatcher> watcher);
  void Remove(const JobWatcher* watcher);

  void Changed(const core::JobId& job);
  void Progressed(const core::JobId& job);
  // Shows what is due. Call after each batch of commands and at next_deadline_us.
  void Flush(const View& view);
  std::optional<int64_t> next_deadline_us() const;

  void CloseAll(const absl::Status& status);

 private:
  struct Topic {
    std::vector<std::shared_ptr<JobWatcher>> watchers;
    bool changed = false;
    bool progressed = false;
    int64_t shown_us = 0;
  };

  const WatcherOptions options_;
  std::map<core::JobId, Topic> topics_;  // Only jobs with watchers.
  size_t count_ = 0;
};

}  // namespace fedshard::service
