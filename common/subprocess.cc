#include "common/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace fedshard {
namespace {

// A descriptor closed at the end of its scope.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

absl::Status ErrnoStatus(int error, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case ENOEXEC:
      return absl::PermissionDeniedError(text);
    default:
      return absl::ResourceExhaustedError(text);
  }
}

struct Stream {
  Fd child;   // What the child writes to; none = inherited.
  Fd parent;  // Our end of a pipe.
};

absl::StatusOr<Stream> OpenStream(Subprocess::Output output, const std::string& file) {
  Stream stream;
  switch (output) {
    case Subprocess::Output::kInherit:
      break;
    case Subprocess::Output::kDiscard:
      stream.child = Fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
      break;
    case Subprocess::Output::kFile:
      stream.child = Fd(open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
      if (stream.child.get() < 0) return ErrnoStatus(errno, absl::StrCat("open ", file));
      break;
    case Subprocess::Output::kPipe: {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
      stream.parent = Fd(ends[0]);
      stream.child = Fd(ends[1]);
      break;
    }
  }
  return stream;
}

// Everything the child needs, prepared before the fork: after it, no allocation and no locks.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> environment;
  int in = -1, out = -1, err = -1;
  bool die_with_parent = false;
  pid_t parent = 0;
  bool set_cpus = false;
  cpu_set_t cpus;
  int report = -1;  // errno of a failed exec goes here.
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  const auto fail = [&plan] {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(plan.report, &error, sizeof error);
    _exit(127);
  };
  setpgid(0, 0);
  if (plan.die_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != plan.parent) _exit(127);  // The parent died before the line above.
  }
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.set_cpus) sched_setaffinity(0, sizeof plan.cpus, &plan.cpus);
  dup2(plan.in, STDIN_FILENO);
  if (plan.out >= 0) dup2(plan.out, STDOUT_FILENO);
  if (plan.err >= 0) dup2(plan.err, STDERR_FILENO);
  // Whatever descriptors other code forgot to mark.
  syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  execvpe(plan.argv[0], plan.argv.data(), plan.environment.data());
  fail();
  _exit(127);
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Ours, with the names of `added` replaced.
std::vector<std::string> Environment(const std::vector<std::string>& added) {
  std::vector<std::string> result = added;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string existing = *entry;
    const std::string name = existing.substr(0, existing.find('=') + 1);
    bool replaced = false;
    for (const std::string& one : added) replaced |= one.compare(0, name.size(), name) == 0;
    if (!replaced) result.push_back(existing);
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Start(const Options& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("argv is empty");
  absl::StatusOr<Stream> out = OpenStream(options.out, options.out_file);
  if (!out.ok()) return out.status();
  absl::StatusOr<Stream> err =
      options.err_to_out ? Stream() : OpenStream(options.err, options.err_file);
  if (!err.ok()) return err.status();
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const Fd report_read(report[0]);
  Fd report_write(report[1]);

  const std::vector<std::string> environment = Environment(options.environment);
  ChildPlan plan;
  plan.argv = Pointers(options.argv);
  plan.environment = Pointers(environment);
  plan.in = null.get();
  plan.out = out->child.get();
  plan.err = options.err_to_out ? (plan.out >= 0 ? plan.out : STDOUT_FILENO) : err->child.get();
  plan.die_with_parent = options.die_with_parent;
  plan.parent = getpid();
  plan.report = report_write.get();
  CPU_ZERO(&plan.cpus);
  for (const int cpu : options.cpus) {
    CPU_SET(cpu, &plan.cpus);
    plan.set_cpus = true;
  }

  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) RunChild(plan);

  auto process = std::unique_ptr<Subprocess>(new Subprocess);
  process->pid_ = pid;
  setpgid(pid, pid);  // In the child too: whichever comes first.
  process->pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  process->out_fd_ = out->parent.release();
  process->err_fd_ = err->parent.release();
  { Fd closed = std::move(report_write); }
  int error = 0;
  ssize_t got;
  do {
    got = read(report_read.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    process->Stop(0);
    return ErrnoStatus(error, absl::StrCat("cannot execute ", options.argv[0]));
  }
  if (process->pid_fd_ < 0) return ErrnoStatus(errno, "pidfd_open");
  return process;
}

Subprocess::~Subprocess() {
  if (!exit_) Stop(0);
  for (const int fd : {pid_fd_, out_fd_, err_fd_}) {
    if (fd >= 0) close(fd);
  }
}

std::optional<Subprocess::Exit> Subprocess::Poll() {
  if (exit_) return exit_;
  siginfo_t ended = {};
  if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      ended.si_pid == pid_) {
    // What the child left in its group goes with it; before reaping, while the group's number is
    // surely still ours.
    kill(-pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    exit_ = WIFSIGNALED(status) ? Exit{0, WTERMSIG(status)} : Exit{WEXITSTATUS(status), 0};
  }
  return exit_;
}

std::optional<Subprocess::Exit> Subprocess::WaitFor(int64_t timeout_us) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::microseconds(timeout_us);
  while (!Poll()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() < 0) return std::nullopt;
    pollfd event = {pid_fd_, POLLIN, 0};
    poll(&event, 1, static_cast<int>(left.count()) + 1);
  }
  return exit_;
}

void Subprocess::Signal(int signal) {
  if (!exit_) kill(-pid_, signal);
}

Subprocess::Exit Subprocess::Stop(int64_t grace_us) {
  if (grace_us > 0) {
    Signal(SIGTERM);
    Signal(SIGCONT);  // A stopped process cannot act on TERM.
    if (const auto exit = WaitFor(grace_us)) return *exit;
  }
  Signal(SIGKILL);
  while (!exit_) WaitFor(1'000'000);
  return *exit_;
}

}  // namespace fedshard
