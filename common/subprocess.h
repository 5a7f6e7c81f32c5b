// One child process, from fork+exec to reaped.
//
// Lifecycle: Start() returns a running child or the reason why exec failed. The owner ends it with
// Stop() (TERM, then KILL) or waits; the destructor kills and reaps what is left, so a Subprocess
// never leaves a process or a zombie behind. The child leads a process group of its own, and
// signals of Stop() go to that group: grandchildren end with it. Nothing else is ever signalled: no
// walking of /proc, no names.
//
// Threads: not thread-safe, except that pid() may be read anywhere. With `die_with_parent` the
// kernel kills the child when the *thread* that called Start() ends: start such children from a
// thread that lives as long as the process. Between fork and exec only async-signal-safe calls are
// made, so the parent may have threads (gRPC) and locks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fedshard {

class Subprocess {
 public:
  enum class Output { kInherit, kDiscard, kPipe, kFile };

  struct Options {
    std::vector<std::string> argv;         // argv[0]: a path, or a name found in PATH.
    std::vector<std::string> environment;  // "NAME=value", added to ours.
    Output out = Output::kInherit;
    Output err = Output::kInherit;
    bool err_to_out = false;  // Standard error goes where standard output goes.
    std::string out_file;     // For kFile; appended to.
    std::string err_file;
    bool die_with_parent = false;  // KILL when the starting thread ends.
    std::vector<int> cpus;         // Affinity; empty = ours.
  };

  struct Exit {
    int exit_code = 0;  // When signal is 0.
    int signal = 0;
  };

  // NOT_FOUND / PERMISSION_DENIED when the program cannot be executed; RESOURCE_EXHAUSTED when
  // there are no processes, descriptors or memory for it. Standard input is /dev/null.
  static absl::StatusOr<std::unique_ptr<Subprocess>> Start(const Options& options);
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const { return pid_; }
  // Our ends of the pipes, or -1. Owned by this object; read them from one thread.
  int out_fd() const { return out_fd_; }
  int err_fd() const { return err_fd_; }
  // Readable when the process has ended; for poll(). Owned by this object.
  int pid_fd() const { return pid_fd_; }

  // How it ended, if it has; reaps it.
  std::optional<Exit> Poll();
  // Waits at most `timeout_us`.
  std::optional<Exit> WaitFor(int64_t timeout_us);
  // To the child's whole group; nothing when it is reaped.
  void Signal(int signal);
  // TERM, and KILL after `grace_us`; returns when the child is reaped.
  Exit Stop(int64_t grace_us);
  // Lets the child live on without this object, which is then done with it.
  void Detach() { exit_ = Exit{}; }

 private:
  Subprocess() = default;

  pid_t pid_ = -1;
  int pid_fd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::optional<Exit> exit_;
};

}  // namespace fedshard
