// std::mutex and std::condition_variable with Clang's thread-safety annotations. The packaged
// absl::Mutex is invisible to ThreadSanitizer, so the project uses these.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// Abseil's headers define GUARDED_BY too, with the same meaning; theirs wins, so that the order of
// includes is free.
#if __has_include("absl/base/thread_annotations.h")
#include "absl/base/thread_annotations.h"
#endif

#if defined(__clang__)
#define FEDSHARD_ANNOTATE(x) __attribute__((x))
#else
#define FEDSHARD_ANNOTATE(x)
#endif
#ifndef GUARDED_BY
#define GUARDED_BY(x) FEDSHARD_ANNOTATE(guarded_by(x))
#endif
#define REQUIRES(...) FEDSHARD_ANNOTATE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) FEDSHARD_ANNOTATE(locks_excluded(__VA_ARGS__))

namespace fedshard {

class FEDSHARD_ANNOTATE(capability("mutex")) Mutex {
 public:
  void Lock() FEDSHARD_ANNOTATE(acquire_capability()) { mu_.lock(); }
  void Unlock() FEDSHARD_ANNOTATE(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class FEDSHARD_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) FEDSHARD_ANNOTATE(acquire_capability(mu)) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() FEDSHARD_ANNOTATE(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Callers hold the mutex and re-check their condition after every return.
class CondVar {
 public:
  void Wait(Mutex& mu) REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when the time is up.
  bool WaitFor(Mutex& mu, std::chrono::microseconds timeout) REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool notified = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace fedshard
