// A real cluster on this machine for tests: the built binaries, ports bound by them, a folder of
// its own. Everything it started is gone when it is destroyed, and CheckNothingLeft() says so.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/subprocess.h"

namespace fedshard::testing {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs a program to its end. The test fails when it takes longer than `timeout_s`.
CommandResult RunCommand(const std::vector<std::string>& argv, int timeout_s = 120);

// Path of a built binary ("fedshard").
std::string Binary(const std::string& name);

// `fedshard ARGS...`
CommandResult Fedshard(std::vector<std::string> args, int timeout_s = 120);

// `fedshard local run JOB -o json ...`, parsed; fails the test when it is not one JSON object.
nlohmann::json LocalRun(const std::string& job_file, const std::vector<std::string>& more = {},
                        int expected_exit_code = 0);

// Processes whose command line contains `text` (a folder or socket of the test's own), by /proc.
std::vector<pid_t> ProcessesNaming(const std::string& text);

struct ClusterOptions {
  int nodes = 2;
  int slots = 4;
  // Short, so that losing a node is seen within a test; long against a scheduler hiccup.
  std::string heartbeat_interval = "200ms";
  std::string node_lost_after = "3s";
  std::string trainer_timeout = "4s";
};

class MiniCluster {
 public:
  // Starts a coordinator and `nodes` workers named node-0, node-1, ... and waits until all are
  // registered.
  explicit MiniCluster(ClusterOptions options = {});
  ~MiniCluster();

  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  pid_t coordinator_pid() const;
  pid_t worker_pid(int node) const;
  // Trainers of a worker, by parent pid.
  std::vector<pid_t> TrainerPids(int node) const;

  // `fedshard ARGS... --coordinator ADDRESS`
  CommandResult Cli(std::vector<std::string> args, int timeout_s = 60) const;
  // `get job ID -o json`
  nlohmann::json Job(const std::string& id) const;
  // Waits until the job's state is one of `states` ("RUNNING"); returns the job. Fails the test
  // when it takes too long.
  nlohmann::json WaitForState(const std::string& id, const std::vector<std::string>& states,
                              int timeout_s = 60) const;
  // Waits until the job has committed at least `rounds` rounds.
  void WaitForRounds(const std::string& id, int rounds, int timeout_s = 60) const;
  // Waits until all slots of active nodes are free: every trainer there is reaped.
  void WaitForFreeSlots(int timeout_s = 30) const;
  // Stops everything with TERM and requires that no process and no file of it is left, except the
  // folder's logs.
  void StopAndCheck();

  const std::string& folder() const { return folder_; }

 private:
  void StartWorker(int node);

  ClusterOptions options_;
  std::string folder_;
  std::string address_;
  std::string metrics_address_;
  std::unique_ptr<Subprocess> coordinator_;
  std::vector<std::unique_ptr<Subprocess>> workers_;
};

}  // namespace fedshard::testing
