// Children are started, observed and ended as documented, and nothing of them is left: no process,
// zombie or descriptor.
#include "common/subprocess.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "common/testing/eventually.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"

namespace fedshard {
namespace {

using testing::Eventually;
using testing::StatusIs;

constexpr int64_t kLong = 30'000'000;

std::unique_ptr<Subprocess> Shell(const std::string& script, Subprocess::Options options = {}) {
  options.argv = {"sh", "-c", script};
  auto process = Subprocess::Start(options);
  EXPECT_THAT(process, testing::IsOk());
  return *std::move(process);
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  return text;
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

bool Exists(pid_t pid) { return kill(pid, 0) == 0; }

TEST(Subprocess, ReportsExitCodesAndSignals) {
  EXPECT_EQ(Shell("exit 7")->WaitFor(kLong)->exit_code, 7);
  EXPECT_EQ(Shell("kill -9 $$")->WaitFor(kLong)->signal, SIGKILL);
}

TEST(Subprocess, SaysWhyExecFailed) {
  Subprocess::Options options;
  options.argv = {"/nonexistent/program"};
  EXPECT_THAT(Subprocess::Start(options),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("/nonexistent/program")));
  options.argv = {"/etc/passwd"};
  EXPECT_THAT(Subprocess::Start(options), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(Subprocess, CapturesBothStreams) {
  Subprocess::Options options;
  options.out = options.err = Subprocess::Output::kPipe;
  options.environment = {"GREETING=hello"};
  const auto process = Shell("echo $GREETING; echo oops >&2", options);
  EXPECT_EQ(ReadAll(process->out_fd()), "hello\n");
  EXPECT_EQ(ReadAll(process->err_fd()), "oops\n");
  EXPECT_EQ(process->WaitFor(kLong)->exit_code, 0);
}

TEST(Subprocess, StopTermsThenKills) {
  auto process = Shell("sleep 1000");
  EXPECT_EQ(process->Stop(kLong).signal, SIGTERM);

  Subprocess::Options options;
  options.out = Subprocess::Output::kPipe;
  process = Shell("trap '' TERM; echo ready; while true; do sleep 0.05; done", options);
  char ready[6];
  ASSERT_EQ(read(process->out_fd(), ready, 6), 6);
  EXPECT_EQ(process->Stop(100'000).signal, SIGKILL);
}

TEST(Subprocess, GrandchildrenEndWithTheChild) {
  Subprocess::Options options;
  options.out = Subprocess::Output::kPipe;
  const auto process = Shell("sleep 1000 & echo $!; wait", options);
  char line[32] = {};
  ASSERT_GT(read(process->out_fd(), line, sizeof line - 1), 0);
  const pid_t grandchild = atoi(line);
  ASSERT_TRUE(Exists(grandchild));
  process->Stop(kLong);
  EXPECT_TRUE(Eventually([&] { return !Exists(grandchild); }));
}

TEST(Subprocess, StoppedChildIsStoppedToo) {
  auto process = Shell("sleep 1000");
  process->Signal(SIGSTOP);
  EXPECT_EQ(process->Stop(kLong).signal, SIGTERM);
}

TEST(Subprocess, DiesWithTheThreadThatStartedIt) {
  Subprocess::Options options;
  options.die_with_parent = true;
  std::unique_ptr<Subprocess> process;
  std::thread([&] { process = Shell("sleep 1000", options); }).join();
  EXPECT_EQ(process->WaitFor(kLong)->signal, SIGKILL);
}

TEST(Subprocess, DestructorReapsAndNoDescriptorLeaks) {
  const int before = OpenDescriptors();
  pid_t pid;
  for (int i = 0; i < 20; ++i) {
    Subprocess::Options options;
    options.out = options.err = Subprocess::Output::kPipe;
    const auto process = Shell("sleep 1000", options);
    pid = process->pid();
  }
  EXPECT_FALSE(Exists(pid));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(Subprocess, ChildHasOnlyItsOwnDescriptors) {
  const int leaked = dup(STDIN_FILENO);  // Not close-on-exec.
  Subprocess::Options options;
  options.out = Subprocess::Output::kPipe;
  const auto process = Shell("ls /proc/self/fd | wc -l", options);
  EXPECT_EQ(std::stoi(ReadAll(process->out_fd())), 4);  // 0, 1, 2 and ls's own.
  close(leaked);
}

TEST(Subprocess, AppendsToAFileAndKeepsToItsCpu) {
  const testing::TempDir dir;
  Subprocess::Options options;
  options.out = Subprocess::Output::kFile;
  options.out_file = dir.path() + "/log";
  options.err_to_out = true;
  options.cpus = {0};
  for (int i = 0; i < 2; ++i) {
    Shell("grep Cpus_allowed_list /proc/self/status; echo err >&2", options)->WaitFor(kLong);
  }
  std::ifstream file(options.out_file);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, "Cpus_allowed_list:\t0\nerr\nCpus_allowed_list:\t0\nerr\n");
}

}  // namespace
}  // namespace fedshard
