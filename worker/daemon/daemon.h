// One node's worker: connects the coordinator's directives to the supervisor and the trainers, and
// their reports back. Starts and ends trainers; decides nothing about jobs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "worker/daemon/coordinator_link.h"
#include "worker/daemon/log_reader.h"
#include "worker/daemon/rank_sessions.h"
#include "worker/daemon/trainer_server.h"
#include "worker/supervisor/supervisor.h"

namespace fedshard::daemon {

struct DaemonOptions {
  std::string coordinator;  // HOST:PORT
  std::string node_id;
  int32_t slots = 1;
  std::vector<std::pair<std::string, std::string>> labels;
  std::string data_address = "127.0.0.1";
  std::string log_directory;
  std::string run_directory;  // Holds the trainers' socket; must exist, path below 80 bytes.
  std::string trainer;        // Path of fedshard-trainer.
  int64_t trainer_timeout_us = 10'000'000;
  int64_t connect_timeout_us = 60'000'000;
  int64_t stop_grace_us = 2'000'000;  // For trainers when the worker itself stops.
  bool pin = false;                   // Slot i's trainer runs on CPUs i*threads ...
};

class Daemon {
 public:
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(DaemonOptions options, const Clock& clock);
  // Stops everything: trainers (TERM, KILL), streams, socket.
  ~Daemon();

  // Waits until the link to the coordinator is over for good, at most `timeout_us`; why.
  std::optional<absl::Status> WaitForFatal(int64_t timeout_us);

 private:
  explicit Daemon(DaemonOptions options);

  void OnDirective(const v1::ConnectResponse& directive);
  void StartRanks(const v1::StartRanks& directive);
  // Why not all of these ranks can start here; empty when they can.
  std::string RefusalOf(const v1::StartRanks& directive) REQUIRES(start_mu_);
  void StopRanks(const v1::StopRanks& directive);
  void DirectRanks(const v1::DirectRanks& directive);
  void OnReport(const TrainerId& id, const v1::RankReport& report);
  void OnExit(const TrainerId& id, const supervisor::TrainerExit& exit);
  void ReportExit(const TrainerId& id, const supervisor::TrainerExit& exit);
  // A report that must arrive; when there is no room the link has failed.
  void SendOrFail(v1::ConnectRequest report);
  void Fail(const absl::Status& status);

  const DaemonOptions options_;
  RankSessions sessions_;
  std::unique_ptr<supervisor::Supervisor> supervisor_;
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<LogReader> log_reader_;
  std::unique_ptr<TrainerServer> trainer_server_;

  Mutex mu_;
  CondVar changed_;
  std::optional<absl::Status> fatal_ GUARDED_BY(mu_);

  Mutex start_mu_;                             // Held while ranks start; before other locks.
  bool ending_ GUARDED_BY(start_mu_) = false;  // Nothing starts any more.
};

}  // namespace fedshard::daemon
