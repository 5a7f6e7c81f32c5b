#include "tests/cluster/mini_cluster.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "common/testing/eventually.h"

namespace fedshard::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::seconds;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Both pipes until both ends are closed or the time is up.
void ReadPipes(Subprocess& process, CommandResult& result,
               std::chrono::steady_clock::time_point deadline) {
  pollfd pipes[2] = {{process.out_fd(), POLLIN, 0}, {process.err_fd(), POLLIN, 0}};
  std::string* texts[2] = {&result.out, &result.err};
  while ((pipes[0].fd >= 0 || pipes[1].fd >= 0) && std::chrono::steady_clock::now() < deadline) {
    poll(pipes, 2, 100);
    for (int i = 0; i < 2; ++i) {
      if (pipes[i].fd < 0 || (pipes[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      char buffer[8192];
      const ssize_t got = read(pipes[i].fd, buffer, sizeof buffer);
      if (got <= 0) {
        pipes[i].fd = -1;
      } else {
        texts[i]->append(buffer, static_cast<size_t>(got));
      }
    }
  }
}

std::vector<pid_t> Children(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& task :
       fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
    std::istringstream pids(ReadFile((task.path() / "children").string()));
    for (pid_t child; pids >> child;) children.push_back(child);
  }
  std::sort(children.begin(), children.end());
  return children;
}

// "JOB_STATE_RUNNING" -> "RUNNING".
std::string ShortState(const json& job) {
  return job["state"].get<std::string>().substr(sizeof "JOB_STATE");
}

}  // namespace

std::string Binary(const std::string& name) {
  const char* folder = getenv("FEDSHARD_BIN");
  if (folder == nullptr) throw std::runtime_error("FEDSHARD_BIN is not set; run through ctest");
  return std::string(folder) + "/" + name;
}

CommandResult RunCommand(const std::vector<std::string>& argv, int timeout_s) {
  Subprocess::Options options;
  options.argv = argv;
  options.out = options.err = Subprocess::Output::kPipe;
  options.die_with_parent = true;
  // Nothing of the user's own settings, and no colours.
  options.environment = {"XDG_STATE_HOME=/tmp/fedshard-test-no-state",
                         "FEDSHARD_COORDINATOR=", "NO_COLOR=1"};
  auto process = Subprocess::Start(options);
  if (!process.ok()) throw std::runtime_error(process.status().ToString());
  CommandResult result;
  const auto deadline = std::chrono::steady_clock::now() + seconds(timeout_s);
  ReadPipes(**process, result, deadline);
  const auto exit = (*process)->WaitFor(std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::microseconds>(deadline -
                                                               std::chrono::steady_clock::now())
             .count()));
  if (!exit) {
    ADD_FAILURE() << argv[0] << " " << (argv.size() > 1 ? argv[1] : "") << " took longer than "
                  << timeout_s << " s; standard error so far: " << result.err;
    (*process)->Stop(15'000'000);
    return result;
  }
  result.exit_code = exit->signal != 0 ? 128 + exit->signal : exit->exit_code;
  return result;
}

CommandResult Fedshard(std::vector<std::string> args, int timeout_s) {
  args.insert(args.begin(), Binary("fedshard"));
  return RunCommand(args, timeout_s);
}

json LocalRun(const std::string& job_file, const std::vector<std::string>& more,
              int expected_exit_code) {
  std::vector<std::string> args = {"local", "run", job_file, "-o", "json"};
  args.insert(args.end(), more.begin(), more.end());
  const CommandResult result = Fedshard(args, 240);
  EXPECT_EQ(result.exit_code, expected_exit_code) << result.err;
  json object = json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(object.is_object()) << "not one JSON object: " << result.out;
  return object;
}

std::vector<pid_t> ProcessesNaming(const std::string& text) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (std::stoi(name) == getpid()) continue;
    if (ReadFile((entry.path() / "cmdline").string()).find(text) != std::string::npos) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

MiniCluster::MiniCluster(ClusterOptions options) : options_(std::move(options)) {
  std::string path = "/tmp/fedshard-cluster-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp");
  folder_ = path;
  Subprocess::Options coordinator;
  coordinator.argv = {Binary("fedshard-coordinator"),
                      "--listen",
                      "127.0.0.1:0",
                      "--metrics-listen",
                      "127.0.0.1:0",
                      "--data-directory",
                      folder_ + "/coordinator",
                      "--address-file",
                      folder_ + "/address.json",
                      "--heartbeat-interval",
                      options_.heartbeat_interval,
                      "--node-lost-after",
                      options_.node_lost_after};
  coordinator.out = Subprocess::Output::kFile;
  coordinator.out_file = folder_ + "/coordinator.log";
  coordinator.err_to_out = true;
  coordinator.die_with_parent = true;
  coordinator_ = Subprocess::Start(coordinator).value();
  if (!Eventually([&] { return fs::exists(folder_ + "/address.json"); })) {
    throw std::runtime_error("the coordinator did not start: " + ReadFile(coordinator.out_file));
  }
  const json address = json::parse(ReadFile(folder_ + "/address.json"));
  address_ = address["grpc"];
  metrics_address_ = address["metrics"];
  for (int node = 0; node < options_.nodes; ++node) StartWorker(node);
  if (!Eventually([&] {
        const json nodes = json::parse(Cli({"get", "nodes", "-o", "json"}).out, nullptr, false);
        return nodes.is_array() && static_cast<int>(nodes.size()) == options_.nodes;
      })) {
    throw std::runtime_error("the workers did not register");
  }
}

MiniCluster::~MiniCluster() {
  for (const auto& worker : workers_) worker->Signal(SIGTERM);
  for (const auto& worker : workers_) worker->Stop(10'000'000);
  if (coordinator_) coordinator_->Stop(10'000'000);
  if (::testing::Test::HasFailure()) {
    fprintf(stderr, "--- coordinator.log\n%s", ReadFile(folder_ + "/coordinator.log").c_str());
  }
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void MiniCluster::StartWorker(int node) {
  const std::string name = "node-" + std::to_string(node);
  Subprocess::Options worker;
  worker.argv = {Binary("fedshard-worker"),
                 "--coordinator",
                 address_,
                 "--node-id",
                 name,
                 "--slots",
                 std::to_string(options_.slots),
                 "--data-address",
                 "127.0.0.1",
                 "--log-directory",
                 folder_ + "/logs",
                 "--run-directory",
                 folder_ + "/" + name,
                 "--trainer-timeout",
                 options_.trainer_timeout};
  worker.out = Subprocess::Output::kFile;
  worker.out_file = folder_ + "/" + name + ".log";
  worker.err_to_out = true;
  worker.die_with_parent = true;
  workers_.push_back(Subprocess::Start(worker).value());
}

pid_t MiniCluster::coordinator_pid() const { return coordinator_->pid(); }
pid_t MiniCluster::worker_pid(int node) const { return workers_.at(node)->pid(); }
std::vector<pid_t> MiniCluster::TrainerPids(int node) const { return Children(worker_pid(node)); }

CommandResult MiniCluster::Cli(std::vector<std::string> args, int timeout_s) const {
  args.insert(args.end(), {"--coordinator", address_});
  return Fedshard(std::move(args), timeout_s);
}

json MiniCluster::Job(const std::string& id) const {
  const CommandResult result = Cli({"get", "job", id, "-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

json MiniCluster::WaitForState(const std::string& id, const std::vector<std::string>& states,
                               int timeout_s) const {
  json job;
  const bool reached = Eventually(
      [&] {
        job = Job(id);
        return job.is_object() && std::count(states.begin(), states.end(), ShortState(job)) > 0;
      },
      seconds(timeout_s));
  EXPECT_TRUE(reached) << "job " << id << " is " << job.dump();
  return job;
}

void MiniCluster::WaitForRounds(const std::string& id, int rounds, int timeout_s) const {
  json job;
  const bool reached = Eventually(
      [&] {
        job = Job(id);
        return job.is_object() && job["progress"].is_object() &&
               std::stoll(job["progress"]["rounds_committed"].get<std::string>()) >= rounds;
      },
      seconds(timeout_s));
  ASSERT_TRUE(reached) << "job " << id << " is " << job.dump();
}

void MiniCluster::WaitForFreeSlots(int timeout_s) const {
  json nodes;
  EXPECT_TRUE(Eventually(
      [&] {
        nodes = json::parse(Cli({"get", "nodes", "-o", "json"}).out, nullptr, false);
        return nodes.is_array() && std::all_of(nodes.begin(), nodes.end(), [](const json& node) {
                 return node["slots_used"] == 0 || node["state"] == "NODE_STATE_LOST";
               });
      },
      seconds(timeout_s)))
      << nodes.dump();
}

void MiniCluster::StopAndCheck() {
  for (const auto& worker : workers_) worker->Signal(SIGTERM);
  for (const auto& worker : workers_) {
    EXPECT_TRUE(worker->WaitFor(20'000'000).has_value()) << "a worker ignores TERM";
  }
  coordinator_->Signal(SIGTERM);
  EXPECT_TRUE(coordinator_->WaitFor(20'000'000).has_value()) << "the coordinator ignores TERM";
  // Trainers carry the folder in their command line (the socket's path).
  EXPECT_TRUE(Eventually([&] { return ProcessesNaming(folder_).empty(); }));
  for (size_t node = 0; node < workers_.size(); ++node) {
    const auto exit = workers_[node]->Poll();
    if (exit && exit->signal == SIGKILL) continue;  // Killed by the test: could not clean up.
    EXPECT_FALSE(fs::exists(folder_ + "/node-" + std::to_string(node) + "/trainers.sock"));
  }
}

}  // namespace fedshard::testing
