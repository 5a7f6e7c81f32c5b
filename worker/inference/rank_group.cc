#include "worker/inference/rank_group.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "worker/inference/exit_codes.h"

namespace fedshard::inference {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kStopGraceUs = 2'000'000;
// How long a rank that failed by itself may take to end after those that lost it.
constexpr auto kCauseWait = std::chrono::seconds(5);

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  struct sigaction hangup = {};  // nohup means what it says.
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

std::string LastLine(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

class RankGroup {
 public:
  explicit RankGroup(const RankTask& task) : task_(task), exits_(task.ranks) {}
  ~RankGroup() {
    // All at once, then each to its end.
    for (const auto& rank : ranks_) rank->Signal(SIGTERM);
    for (const auto& rank : ranks_) rank->Stop(kStopGraceUs);
    if (signals_ >= 0) close(signals_);
  }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  absl::Status Start();
  absl::Status Listen(const std::function<absl::Status(const std::string&)>& see);

 private:
  // Takes what the first rank has written.
  absl::Status Read(const std::function<absl::Status(const std::string&)>& see);
  // Notes who has ended; the error of one that failed by itself.
  absl::Status Reap();
  absl::Status ErrorOf(int rank) const;
  // Once the deadline has passed.
  absl::Status Overdue() const;

  const RankTask& task_;
  std::vector<std::unique_ptr<Subprocess>> ranks_;
  std::vector<std::optional<Subprocess::Exit>> exits_;
  int signals_ = -1;
  bool output_open_ = true;
  std::string pending_;  // The first rank's line under way.
  Clock::time_point deadline_;
  std::optional<int> lost_;  // The first rank that ended because it lost another.
};

absl::Status RankGroup::Start() {
  const sigset_t signals = Signals();
  signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) return absl::InternalError(absl::StrCat("signalfd: ", strerror(errno)));
  const std::string file = absl::StrCat(task_.folder, "/task.json");
  std::ofstream(file) << ToJson(task_);
  for (int rank = 0; rank < task_.ranks; ++rank) {
    Subprocess::Options options;
    options.argv = {fs::read_symlink("/proc/self/exe").string(), "rank", file, absl::StrCat(rank)};
    options.out = rank == 0 ? Subprocess::Output::kPipe : Subprocess::Output::kDiscard;
    options.err = Subprocess::Output::kFile;
    options.err_file = absl::StrCat(task_.folder, "/rank-", rank, ".err");
    options.die_with_parent = true;
    // Threads that spin while they wait for one that the machine does not run cost far more than
    // sleeping does (docs/inference.md).
    if (getenv("OMP_WAIT_POLICY") == nullptr) options.environment = {"OMP_WAIT_POLICY=PASSIVE"};
    ASSIGN_OR_RETURN(auto process, Subprocess::Start(options));
    ranks_.push_back(std::move(process));
  }
  deadline_ = Clock::now() + std::chrono::seconds(task_.timeout_s);
  return absl::OkStatus();
}

absl::Status RankGroup::Listen(const std::function<absl::Status(const std::string&)>& see) {
  size_t running = ranks_.size();
  while (running > 0 || output_open_) {
    std::vector<pollfd> events = {{signals_, POLLIN, 0},
                                  {output_open_ ? ranks_[0]->out_fd() : -1, POLLIN, 0}};
    for (size_t i = 0; i < ranks_.size(); ++i) {
      events.push_back({exits_[i] ? -1 : ranks_[i]->pid_fd(), POLLIN, 0});
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    if (left < 0) return Overdue();
    poll(events.data(), events.size(), static_cast<int>(left) + 1);
    if (events[0].revents != 0) return absl::CancelledError("interrupted");
    if (events[1].revents != 0) RETURN_IF_ERROR(Read(see));
    RETURN_IF_ERROR(Reap());
    running = 0;
    for (const auto& exit : exits_) running += exit ? 0 : 1;
  }
  return lost_ ? ErrorOf(*lost_) : absl::OkStatus();
}

absl::Status RankGroup::Read(const std::function<absl::Status(const std::string&)>& see) {
  char buffer[8192];
  const ssize_t got = read(ranks_[0]->out_fd(), buffer, sizeof buffer);
  if (got < 0 && errno == EINTR) return absl::OkStatus();
  if (got <= 0) {
    output_open_ = false;
    return absl::OkStatus();
  }
  if (!lost_) deadline_ = Clock::now() + std::chrono::seconds(task_.timeout_s);
  pending_.append(buffer, static_cast<size_t>(got));
  for (size_t end; (end = pending_.find('\n')) != std::string::npos;) {
    const std::string line = pending_.substr(0, end);
    pending_.erase(0, end + 1);
    RETURN_IF_ERROR(see(line));
  }
  return absl::OkStatus();
}

absl::Status RankGroup::Reap() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (exits_[i]) continue;
    exits_[i] = ranks_[i]->Poll();
    if (!exits_[i] || (exits_[i]->signal == 0 && exits_[i]->exit_code == kExitDone)) continue;
    const int rank = static_cast<int>(i);
    if (exits_[i]->signal != 0 || exits_[i]->exit_code != kExitCollective) return ErrorOf(rank);
    if (!lost_) {
      lost_ = rank;
      deadline_ = Clock::now() + kCauseWait;
    }
  }
  return absl::OkStatus();
}

absl::Status RankGroup::ErrorOf(int rank) const {
  const std::string who = task_.ranks > 1 ? absl::StrCat("rank ", rank, ": ") : "";
  const Subprocess::Exit exit = *exits_[rank];
  if (exit.signal != 0) {
    return absl::InternalError(
        absl::StrCat(who, "killed by signal ", exit.signal,
                     exit.signal == SIGKILL ? "; the machine may be out of memory" : ""));
  }
  const std::string message = LastLine(absl::StrCat(task_.folder, "/rank-", rank, ".err"));
  const std::string text =
      message.empty() ? absl::StrCat(who, "exit code ", exit.exit_code) : who + message;
  switch (exit.exit_code) {
    case kExitUsage:
      return absl::InvalidArgumentError(text);
    case kExitNotFound:
      return absl::NotFoundError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status RankGroup::Overdue() const {
  if (lost_) return ErrorOf(*lost_);
  return absl::DeadlineExceededError(
      absl::StrCat("no progress for ", task_.timeout_s, " s (--timeout)"));
}

}  // namespace

absl::StatusOr<PrivateFolder> PrivateFolder::Make() {
  std::error_code error;
  std::string path = (fs::temp_directory_path(error) / "fedshard-model-XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot make the folder ", path));
  }
  return PrivateFolder(path);
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")) {}

PrivateFolder::~PrivateFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void BlockSignals() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

absl::Status RunRanks(const RankTask& task,
                      const std::function<absl::Status(const std::string& line)>& see) {
  RankGroup group(task);
  RETURN_IF_ERROR(group.Start());
  return group.Listen(see);
}

}  // namespace fedshard::inference
