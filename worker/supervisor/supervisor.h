// Starts trainers, watches them, ends them and reaps them. One thread of its own does all forking,
// reading and reaping, so that the parent-death signal, which follows the forking thread, comes
// exactly when the worker is gone. All public functions may be called from any thread. Owned by the
// daemon.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/subprocess.h"
#include "worker/supervisor/rank_log.h"

namespace fedshard::supervisor {

// One process: a rank in one generation of its group.
struct TrainerId {
  std::string job;
  uint64_t generation = 0;
  int32_t rank = 0;
  auto operator<=>(const TrainerId&) const = default;
};

struct TrainerCommand {
  TrainerId id;
  std::vector<std::string> argv;
  std::vector<std::string> environment;
  std::vector<int> cpus;
  std::string log_path;
};

struct TrainerExit {
  int32_t exit_code = 0;
  int32_t signal = 0;
  // START_FAILED, UNRESPONSIVE, STOPPED; NCCL_FAILED: it said so by its exit code; empty: it ended
  // by itself.
  std::string reason;
  std::string message;
  std::vector<std::string> log_tail;
};

struct SupervisorOptions {
  // A trainer from which nothing was heard for so long is killed.
  int64_t trainer_timeout_us = 10'000'000;
};

class Supervisor {
 public:
  // Called once per started trainer, when it is reaped, on the supervisor's thread; must not block
  // or call back.
  using ExitCallback = std::function<void(const TrainerId&, const TrainerExit&)>;

  Supervisor(SupervisorOptions options, const Clock& clock, ExitCallback on_exit);
  // Kills and reaps whatever still runs.
  ~Supervisor();

  void Start(TrainerCommand command);
  // A sign of life.
  void Alive(const TrainerId& id);
  // TERM now, KILL after `grace_us`.
  void Stop(const TrainerId& id, int64_t grace_us, const std::string& message);
  // Stops all and waits until all are reaped.
  void StopAll(int64_t grace_us, const std::string& message);
  size_t running() const;

 private:
  struct Child {
    std::unique_ptr<Subprocess> process;
    std::unique_ptr<RankLog> log;
    int64_t last_alive_us = 0;
    int64_t kill_at_us = -1;
    bool output_ended = false;  // It closed its output, or it is dead.
    std::string reason;
    std::string message;
  };

  void Post(std::function<void()> task);
  void Loop();
  void RunTasks();
  void DoStart(const TrainerCommand& command);
  void DoStop(const TrainerId& id, int64_t grace_us, const std::string& reason,
              const std::string& message);
  // Reads what is there, at most `max_bytes`: a trainer that never stops printing must not keep the
  // thread from the others.
  void ReadOutput(Child& child, size_t max_bytes);
  void CheckDeadlines();
  void ReapEnded();
  int64_t NowUs() const { return clock_.Now().steady_us; }

  const SupervisorOptions options_;
  const Clock& clock_;
  const ExitCallback on_exit_;

  std::map<TrainerId, Child> children_;  // Loop thread only.
  int64_t last_loop_us_ = 0;             // Loop thread only.

  mutable Mutex mu_;
  mutable CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mu_);
  size_t running_ GUARDED_BY(mu_) = 0;  // Started or about to be.
  bool stopping_ GUARDED_BY(mu_) = false;
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace fedshard::supervisor
