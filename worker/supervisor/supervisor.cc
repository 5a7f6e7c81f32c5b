#include "worker/supervisor/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/duration.h"
#include "common/trainer_exit.h"

namespace fedshard::supervisor {
namespace {

// Deadlines are looked at this often.
constexpr int kTickMs = 100;
// Of one trainer's output, before the others and the deadlines are looked at again.
constexpr size_t kMaxReadBytes = 64 << 10;
// After its end: more than a pipe holds.
constexpr size_t kMaxLastBytes = 2 << 20;

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, const Clock& clock, ExitCallback on_exit)
    : options_(options), clock_(clock), on_exit_(std::move(on_exit)) {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { Loop(); });
}

Supervisor::~Supervisor() {
  StopAll(0, "worker exits");
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Post([] {});
  thread_.join();
  close(wake_fd_);
}

void Supervisor::Post(std::function<void()> task) {
  {
    MutexLock lock(mu_);
    tasks_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void Supervisor::Start(TrainerCommand command) {
  {
    MutexLock lock(mu_);
    ++running_;
  }
  Post([this, command = std::move(command)] { DoStart(command); });
}

void Supervisor::Alive(const TrainerId& id) {
  Post([this, id] {
    if (const auto child = children_.find(id); child != children_.end()) {
      child->second.last_alive_us = NowUs();
    }
  });
}

void Supervisor::Stop(const TrainerId& id, int64_t grace_us, const std::string& message) {
  Post([=, this] { DoStop(id, grace_us, "STOPPED", message); });
}

void Supervisor::StopAll(int64_t grace_us, const std::string& message) {
  Post([=, this] {
    for (const auto& [id, child] : children_) DoStop(id, grace_us, "STOPPED", message);
  });
  // Ends: every child is killed after the grace, and a killed child is reaped.
  MutexLock lock(mu_);
  while (running_ > 0) changed_.WaitFor(mu_, std::chrono::seconds(1));
}

size_t Supervisor::running() const {
  MutexLock lock(mu_);
  return running_;
}

void Supervisor::DoStart(const TrainerCommand& command) {
  const auto failed = [&](const absl::Status& status) {
    on_exit_(command.id, {-1, 0, "START_FAILED", std::string(status.message()), {}});
    MutexLock lock(mu_);
    --running_;
    changed_.NotifyAll();
  };
  absl::StatusOr<RankLog> log = RankLog::Open(command.log_path, clock_);
  if (!log.ok()) return failed(log.status());
  Subprocess::Options options;
  options.argv = command.argv;
  options.environment = command.environment;
  options.cpus = command.cpus;
  options.out = Subprocess::Output::kPipe;
  options.err_to_out = true;
  options.die_with_parent = true;
  absl::StatusOr<std::unique_ptr<Subprocess>> process = Subprocess::Start(options);
  if (!process.ok()) return failed(process.status());
  fcntl((*process)->out_fd(), F_SETFL, O_NONBLOCK);
  Child child;
  child.process = *std::move(process);
  child.log = std::make_unique<RankLog>(*std::move(log));
  child.last_alive_us = NowUs();
  children_.emplace(command.id, std::move(child));
}

void Supervisor::DoStop(const TrainerId& id, int64_t grace_us, const std::string& reason,
                        const std::string& message) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  Child& child = found->second;
  const int64_t kill_at_us = NowUs() + grace_us;
  // A second stop may only shorten the grace.
  if (child.kill_at_us >= 0 && child.kill_at_us <= kill_at_us) return;
  if (child.reason.empty()) {
    child.reason = reason;
    child.message = message;
  }
  child.kill_at_us = kill_at_us;
  child.process->Signal(grace_us > 0 ? SIGTERM : SIGKILL);
  child.process->Signal(SIGCONT);
}

void Supervisor::ReadOutput(Child& child, size_t max_bytes) {
  char buffer[16384];
  for (size_t total = 0; total < max_bytes && !child.output_ended;) {
    const ssize_t got = read(child.process->out_fd(), buffer, sizeof buffer);
    if (got > 0) {
      child.log->Add(buffer, static_cast<size_t>(got));
      total += static_cast<size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      child.output_ended = true;
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void Supervisor::CheckDeadlines() {
  const int64_t now = NowUs();
  // After a pause of this process itself (stopped, or a machine asleep) nobody could have been
  // heard: start anew.
  const bool was_paused = now - last_loop_us_ > options_.trainer_timeout_us / 2;
  last_loop_us_ = now;
  for (auto& [id, child] : children_) {
    if (was_paused) child.last_alive_us = now;
    if (child.kill_at_us >= 0) {
      if (now >= child.kill_at_us) child.process->Signal(SIGKILL);
    } else if (now - child.last_alive_us > options_.trainer_timeout_us) {
      DoStop(id, 0, "UNRESPONSIVE",
             absl::StrCat("no sign of life for ", FormatDuration(options_.trainer_timeout_us)));
    }
  }
}

void Supervisor::ReapEnded() {
  for (auto it = children_.begin(); it != children_.end();) {
    Child& child = it->second;
    const auto exit = child.process->Poll();
    if (!exit) {
      ++it;
      continue;
    }
    ReadOutput(child, kMaxLastBytes);
    child.log->Finish();
    if (child.reason.empty() && exit->signal == 0 && exit->exit_code == kExitNccl) {
      child.reason = "NCCL_FAILED";
      child.message = "a communicator of its GPU failed; a peer is probably gone";
    }
    on_exit_(it->first,
             {exit->exit_code, exit->signal, child.reason, child.message, child.log->Tail()});
    it = children_.erase(it);
    MutexLock lock(mu_);
    --running_;
    changed_.NotifyAll();
  }
}

void Supervisor::RunTasks() {
  std::deque<std::function<void()>> tasks;
  {
    MutexLock lock(mu_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void Supervisor::Loop() {
  last_loop_us_ = NowUs();
  while (true) {
    std::vector<pollfd> events = {{wake_fd_, POLLIN, 0}};
    for (const auto& [id, child] : children_) {
      events.push_back({child.process->pid_fd(), POLLIN, 0});
      // A closed pipe is ready for ever.
      if (!child.output_ended) events.push_back({child.process->out_fd(), POLLIN, 0});
    }
    poll(events.data(), events.size(), kTickMs);
    uint64_t ignored;
    while (read(wake_fd_, &ignored, sizeof ignored) > 0) {
    }
    RunTasks();
    for (auto& [id, child] : children_) ReadOutput(child, kMaxReadBytes);
    CheckDeadlines();
    ReapEnded();
    MutexLock lock(mu_);
    if (stopping_ && running_ == 0) return;
  }
}

}  // namespace fedshard::supervisor
