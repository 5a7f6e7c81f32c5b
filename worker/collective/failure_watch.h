// Notices that a communicator on a GPU failed. Its operations only make streams wait, never the
// CPU, so nobody would see that one does not end: the CPU queues on until it needs a result, and
// then waits for ever. Used by the CUDA plugin; knows no CUDA itself. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "common/mutex.h"

namespace fedshard::collective {

// Ends the process with kExitNccl (common/trainer_exit.h), without unwinding. `why` goes to stderr,
// which the worker keeps.
[[noreturn]] void FailNccl(const std::string& why);

// Operations started in order on one stream, until each is seen to be done. Holds what was given
// with them (an event, say) so long.
class PendingOperations {
 public:
  using Clock = std::chrono::steady_clock;
  using IsDone = std::function<bool()>;

  explicit PendingOperations(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  // `what` must outlive this.
  void Started(const char* what, Clock::time_point now, IsDone is_done);
  // Forgets those that are done; says so when the oldest of the others is older than the timeout.
  std::optional<std::string> Overdue(Clock::time_point now);

 private:
  struct Operation {
    const char* what;
    Clock::time_point started;
    IsDone is_done;
  };
  const std::chrono::milliseconds timeout_;
  Mutex mu_;
  std::deque<Operation> operations_ GUARDED_BY(mu_);
};

class FailureWatch {
 public:
  // What is wrong with a communicator, if anything; what it throws counts as that too. Must not
  // call back.
  using Probe = std::function<std::optional<std::string>()>;
  using OnFailure = std::function<void(const std::string& why)>;

  // Asks every probe each `interval`, on a thread of its own, which ends with the first failure.
  FailureWatch(std::chrono::milliseconds interval, OnFailure on_failure);
  ~FailureWatch();

  int Add(Probe probe);
  // The probe is not running any more when this returns.
  void Remove(int id);

 private:
  void Loop();
  std::optional<std::string> AskAll() REQUIRES(mu_);

  const std::chrono::milliseconds interval_;
  const OnFailure on_failure_;
  Mutex mu_;
  CondVar changed_;
  std::map<int, Probe> probes_ GUARDED_BY(mu_);
  int next_id_ GUARDED_BY(mu_) = 0;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace fedshard::collective
