#include "coordinator/service/inbox.h"

#include <chrono>
#include <utility>

namespace fedshard::service {

bool Inbox::TryPost(Task task) {
  MutexLock lock(mu_);
  if (closed_ || tasks_.size() >= capacity_) return false;
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

bool Inbox::Post(Task task) {
  MutexLock lock(mu_);
  if (closed_) return false;
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

std::deque<Inbox::Task> Inbox::Take(std::optional<int64_t> timeout_us) {
  MutexLock lock(mu_);
  bool in_time = true;
  while (tasks_.empty() && !closed_ && in_time) {
    if (timeout_us) {
      in_time = changed_.WaitFor(mu_, std::chrono::microseconds(*timeout_us));
    } else {
      changed_.Wait(mu_);
    }
  }
  return std::exchange(tasks_, {});
}

void Inbox::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  changed_.NotifyAll();
}

bool Inbox::closed() const {
  MutexLock lock(mu_);
  return closed_;
}

}  // namespace fedshard::service
