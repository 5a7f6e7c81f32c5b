// The bounded queue in front of the service's loop. Thread-safe; any thread posts, one thread
// takes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "common/mutex.h"

namespace fedshard::service {

class Inbox {
 public:
  using Task = std::function<void()>;

  explicit Inbox(size_t capacity) : capacity_(capacity) {}

  // For what users send as they like. False when full or closed; the task is then not run.
  bool TryPost(Task task) EXCLUDES(mu_);
  // For what is bounded elsewhere, at most a few per open call or stream. False when closed.
  bool Post(Task task) EXCLUDES(mu_);

  // Waits for tasks, at most `timeout_us` (absent: until one comes or the inbox is closed), and
  // takes all there are.
  std::deque<Task> Take(std::optional<int64_t> timeout_us) EXCLUDES(mu_);
  // Later posts are refused; what is queued can still be taken.
  void Close() EXCLUDES(mu_);
  bool closed() const EXCLUDES(mu_);

 private:
  const size_t capacity_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Task> tasks_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace fedshard::service
