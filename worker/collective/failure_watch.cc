#include "worker/collective/failure_watch.h"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "common/trainer_exit.h"

namespace fedshard::collective {

void FailNccl(const std::string& why) {
  fprintf(stderr, "NCCL: %s; exiting\n", why.c_str());
  fflush(stderr);
  _exit(kExitNccl);
}

void PendingOperations::Started(const char* what, Clock::time_point now, IsDone is_done) {
  MutexLock lock(mu_);
  operations_.push_back({what, now, std::move(is_done)});
}

std::optional<std::string> PendingOperations::Overdue(Clock::time_point now) {
  MutexLock lock(mu_);
  while (!operations_.empty() && operations_.front().is_done()) operations_.pop_front();
  if (operations_.empty() || now - operations_.front().started <= timeout_) return std::nullopt;
  return std::string(operations_.front().what) + " did not end within " +
         std::to_string(timeout_.count()) + " ms";
}

FailureWatch::FailureWatch(std::chrono::milliseconds interval, OnFailure on_failure)
    : interval_(interval), on_failure_(std::move(on_failure)), thread_([this] { Loop(); }) {}

FailureWatch::~FailureWatch() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

int FailureWatch::Add(Probe probe) {
  MutexLock lock(mu_);
  probes_[next_id_] = std::move(probe);
  return next_id_++;
}

void FailureWatch::Remove(int id) {
  MutexLock lock(mu_);
  probes_.erase(id);
}

void FailureWatch::Loop() {
  std::optional<std::string> failure;
  {
    MutexLock lock(mu_);
    while (!stopping_ && !failure) {
      failure = AskAll();
      if (!failure) changed_.WaitFor(mu_, interval_);
    }
  }
  if (failure) on_failure_(*failure);
}

std::optional<std::string> FailureWatch::AskAll() {
  for (const auto& [id, probe] : probes_) {
    try {
      if (std::optional<std::string> failure = probe()) return failure;
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  return std::nullopt;
}

}  // namespace fedshard::collective
