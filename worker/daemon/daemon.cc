#include "worker/daemon/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/version.h"

namespace fedshard::daemon {
namespace {

// Log lines and steps leave this much room for reports that matter.
constexpr size_t kRoomForReports = 1024;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // A dead network is noticed in well under a minute even when nothing is being said.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::string Describe(const TrainerId& id) {
  return absl::StrCat("job ", id.job, " rank ", id.rank, " (generation ", id.generation, ")");
}

}  // namespace

Daemon::Daemon(DaemonOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(DaemonOptions options, const Clock& clock) {
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(options)));
  Daemon* self = daemon.get();
  const DaemonOptions& o = daemon->options_;
  const auto channel = MakeChannel(o.coordinator);

  daemon->supervisor_ = std::make_unique<supervisor::Supervisor>(
      supervisor::SupervisorOptions{o.trainer_timeout_us}, clock,
      [self](const TrainerId& id, const supervisor::TrainerExit& exit) { self->OnExit(id, exit); });

  LinkOptions link;
  link.identity.set_node_id(o.node_id);
  link.identity.set_incarnation(NewIncarnation());
  link.identity.set_slots(o.slots);
  for (const auto& [key, value] : o.labels) {
    v1::Label& label = *link.identity.add_labels();
    label.set_key(key);
    label.set_value(value);
  }
  link.identity.set_data_address(o.data_address);
  link.identity.set_version(ProjectVersion());
  link.connect_timeout_us = o.connect_timeout_us;
  daemon->link_ = std::make_unique<CoordinatorLink>(
      channel, o.coordinator, link, clock,
      CoordinatorLink::Callbacks{
          [self](const v1::ConnectResponse& directive) { self->OnDirective(directive); },
          [self] {
            self->supervisor_->StopAll(self->options_.stop_grace_us, "coordinator restarted");
            self->log_reader_->StopAll();
          },
          [self](const absl::Status& status) { self->Fail(status); }});

  daemon->log_reader_ = std::make_unique<LogReader>(
      o.log_directory,
      LogReader::Callbacks{[self](const v1::LogLines& lines) {
                             if (self->link_->capacity_left() < kRoomForReports) return false;
                             v1::ConnectRequest report;
                             *report.mutable_log_lines() = lines;
                             return self->link_->Send(std::move(report));
                           },
                           [self](const std::string& job, const std::set<int32_t>& ranks) {
                             return self->sessions_.HasJob(job, ranks);
                           }});

  ASSIGN_OR_RETURN(
      daemon->trainer_server_,
      TrainerServer::Start(o.run_directory + "/trainers.sock", daemon->sessions_, channel,
                           {[self](const TrainerId& id) { self->supervisor_->Alive(id); },
                            [self](const TrainerId& id, const v1::RankReport& report) {
                              self->OnReport(id, report);
                            }}));
  daemon->link_->Start();
  return daemon;
}

Daemon::~Daemon() {
  {
    // The coordinator may want to use the slots that become free here at once.
    MutexLock lock(start_mu_);
    ending_ = true;
  }
  if (supervisor_) supervisor_->StopAll(options_.stop_grace_us, "worker stops");
  // The coordinator hears of the exits if it is there.
  if (link_) link_->Flush(500'000);
  if (link_) link_->Stop();
  trainer_server_.reset();
  log_reader_.reset();
  supervisor_.reset();
}

std::optional<absl::Status> Daemon::WaitForFatal(int64_t timeout_us) {
  MutexLock lock(mu_);
  if (!fatal_) changed_.WaitFor(mu_, std::chrono::microseconds(timeout_us));
  return fatal_;
}

void Daemon::Fail(const absl::Status& status) {
  MutexLock lock(mu_);
  if (!fatal_) fatal_ = status;
  changed_.NotifyAll();
}

void Daemon::SendOrFail(v1::ConnectRequest report) {
  if (!link_->Send(std::move(report))) {
    Fail(absl::ResourceExhaustedError(
        "the coordinator has not acknowledged reports for too long; stopping"));
  }
}

void Daemon::OnDirective(const v1::ConnectResponse& directive) {
  switch (directive.directive_case()) {
    case v1::ConnectResponse::kStartRanks:
      return StartRanks(directive.start_ranks());
    case v1::ConnectResponse::kStopRanks:
      return StopRanks(directive.stop_ranks());
    case v1::ConnectResponse::kDirectRanks:
      return DirectRanks(directive.direct_ranks());
    case v1::ConnectResponse::kReadLogs:
      return log_reader_->Read(directive.read_logs());
    case v1::ConnectResponse::kStopLogs:
      return log_reader_->Stop(directive.stop_logs().log_request());
    default:
      LogWarning(absl::StrCat("directive ", static_cast<int>(directive.directive_case()),
                              " is unknown; is the coordinator newer than this worker?"));
  }
}

std::string Daemon::RefusalOf(const v1::StartRanks& directive) {
  if (ending_) return absl::StrCat("the worker of ", options_.node_id, " is stopping");
  // Only this thread takes slots, so what is free here is still free when the ranks start.
  std::set<int32_t> slots, ranks;
  for (const v1::RankPlacement& placement : directive.ranks()) {
    const int32_t slot = placement.slot();
    if (slot < 0 || slot >= options_.slots) {
      return absl::StrCat("slot ", slot, " does not exist on ", options_.node_id);
    }
    if (sessions_.SlotTaken(slot)) {
      return absl::StrCat("slot ", slot, " of ", options_.node_id, " is taken");
    }
    if (!slots.insert(slot).second || !ranks.insert(placement.rank()).second ||
        sessions_.Has({directive.job(), directive.generation(), placement.rank()})) {
      return absl::StrCat("slot ", slot, " of ", options_.node_id, " or rank ", placement.rank(),
                          " is given twice");
    }
  }
  return "";
}

void Daemon::StartRanks(const v1::StartRanks& directive) {
  MutexLock lock(start_mu_);
  // All or none: one that cannot start fails the whole group here.
  const std::string refused = RefusalOf(directive);
  const int threads = std::max(1, directive.spec().resources().threads_per_rank());
  const int cpus = std::max(1u, std::thread::hardware_concurrency());
  for (const v1::RankPlacement& placement : directive.ranks()) {
    const TrainerId id{directive.job(), directive.generation(), placement.rank()};
    if (!refused.empty()) {
      ReportExit(id, {-1, 0, "START_FAILED", refused, {}});
      continue;
    }
    v1::Start start;
    *start.mutable_spec() = directive.spec();
    start.set_job(directive.job());
    start.set_rank(placement.rank());
    start.set_generation(directive.generation());
    start.set_federation_generation(directive.federation_generation());
    start.set_data_address(options_.data_address);
    start.set_cpu(options_.pin ? placement.slot() * threads % cpus : -1);
    start.set_gpu(placement.slot());
    const std::string token = NewIncarnation();
    sessions_.Add(id, placement.slot(), token, start);
    supervisor::TrainerCommand command;
    command.id = id;
    command.argv = {options_.trainer, "--socket", options_.run_directory + "/trainers.sock"};
    command.environment = {absl::StrCat("FEDSHARD_TRAINER_TOKEN=", token),
                           absl::StrCat("FEDSHARD_WORKER_PID=", getpid())};
    command.log_path = absl::StrCat(options_.log_directory, "/", id.job, "/rank-", id.rank, ".log");
    LogInfo(absl::StrCat("starting ", Describe(id), " on slot ", placement.slot()));
    supervisor_->Start(std::move(command));
  }
}

void Daemon::StopRanks(const v1::StopRanks& directive) {
  for (const RankSession& session : sessions_.Of(directive.job(), directive.generation())) {
    v1::AttachResponse stop;
    stop.mutable_stop()->set_message(directive.message());
    session.mailbox->Push(std::move(stop));
    supervisor_->Stop(session.id, int64_t{1000} * std::max(0, directive.grace_ms()),
                      directive.message());
  }
}

void Daemon::DirectRanks(const v1::DirectRanks& directive) {
  for (const RankSession& session : sessions_.Of(directive.job(), directive.generation())) {
    v1::AttachResponse onward;
    *onward.mutable_rank_directive() = directive.directive();
    if (!session.mailbox->Push(std::move(onward))) {
      LogWarning(absl::StrCat(Describe(session.id), " does not take directives; killing it"));
      supervisor_->Stop(session.id, 0, "does not take directives");
    }
  }
}

void Daemon::OnReport(const TrainerId& id, const v1::RankReport& report) {
  if (report.has_failure()) sessions_.SetFailure(id, report.failure());
  v1::ConnectRequest onward;
  v1::RankReported& reported = *onward.mutable_rank_reported();
  reported.set_job(id.job);
  reported.set_generation(id.generation);
  reported.set_rank(id.rank);
  *reported.mutable_report() = report;
  if (report.has_steps()) {
    // Only shown to people: lost rather than in the way of what must arrive.
    if (link_->capacity_left() >= kRoomForReports) link_->Send(std::move(onward));
  } else {
    SendOrFail(std::move(onward));
  }
}

void Daemon::OnExit(const TrainerId& id, const supervisor::TrainerExit& exit) {
  supervisor::TrainerExit told = exit;
  if (const auto session = sessions_.Remove(id)) {
    if (session->failure && exit.reason.empty()) {
      told.reason = session->failure->reason();
      told.message = session->failure->message();
    }
  }
  LogInfo(absl::StrCat(Describe(id), " ended: exit code ", told.exit_code, ", signal ", told.signal,
                       told.reason.empty() ? "" : ", ", told.reason,
                       told.message.empty() ? "" : ": ", told.message));
  ReportExit(id, told);
}

void Daemon::ReportExit(const TrainerId& id, const supervisor::TrainerExit& exit) {
  v1::ConnectRequest report;
  v1::RankExited& exited = *report.mutable_rank_exited();
  exited.set_job(id.job);
  exited.set_generation(id.generation);
  exited.set_rank(id.rank);
  exited.set_exit_code(exit.exit_code);
  exited.set_signal(exit.signal);
  exited.set_reason(exit.reason);
  exited.set_message(exit.message);
  for (const std::string& line : exit.log_tail) exited.add_log_tail(line);
  SendOrFail(std::move(report));
}

}  // namespace fedshard::daemon
