// The one loop that owns the coordinator's core: inbox -> Core::Apply -> journal -> release of
// replies and directives. Everything behind it (sessions, rendezvous, telemetry, watchers, log
// streams) is touched by the loop thread alone.
//
// Every public method is thread-safe, never blocks (but for Start and Stop), and answers through a
// callback or an interface that the loop thread calls; those must not block either. Each is
// answered exactly once, with RESOURCE_EXHAUSTED (QUEUE_FULL) on the caller's thread when the inbox
// is full, and UNAVAILABLE (SHUTTING_DOWN) after Stop. When the journal fails, nothing that
// depended on it is released: every call from then on is refused with INTERNAL (STORAGE_ERROR).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/core/core.h"
#include "coordinator/service/inbox.h"
#include "coordinator/service/log_streams.h"
#include "coordinator/service/node_sessions.h"
#include "coordinator/service/outliers.h"
#include "coordinator/service/rendezvous.h"
#include "coordinator/service/step_files.h"
#include "coordinator/service/telemetry.h"
#include "coordinator/service/view.h"
#include "coordinator/service/watchers.h"
#include "coordinator/storage/journal.h"

namespace fedshard::service {

struct ServiceOptions {
  core::CoreOptions core;
  NodeSessionOptions sessions;
  RendezvousLimits rendezvous;
  TelemetryOptions telemetry;
  LogStreamOptions logs;
  WatcherOptions watchers;
  std::string data_directory;  // For steps.jsonl; empty = none are written.
  size_t inbox_capacity = 1024;
};

class Service {
 public:
  // `view` is null when the status is an error that the core did not decide.
  using AnswerCallback = std::function<void(const core::Reply& reply, const View* view)>;
  // `view` is null when the status is an error.
  using QueryCallback = std::function<void(const absl::Status& status, const View* view)>;

  // `clock` must outlive the service. The journal must be empty.
  Service(ServiceOptions options, const Clock* clock, std::unique_ptr<storage::Journal> journal);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  void Start();
  // Ends all streams, waiters and watchers, then the loop. Idempotent.
  void Stop();

  // --- Users. `reply_to` is chosen here. ---
  void SubmitJob(core::SubmitJob command, AnswerCallback done);
  void CancelJob(core::CancelJob command, AnswerCallback done);
  void Query(QueryCallback query);
  void Watch(const core::JobId& job, std::shared_ptr<JobWatcher> watcher);
  void Unwatch(std::shared_ptr<JobWatcher> watcher);
  void ReadLogs(LogRequest request, std::shared_ptr<LogReader> reader);
  void StopLogs(std::shared_ptr<LogReader> reader);

  // --- Node streams. Each call but Disconnected ends in ReadNext or Close. ---
  void Connect(std::shared_ptr<NodeStream> stream, NodeRegistration registration);
  void Heartbeat(std::shared_ptr<NodeStream> stream, uint64_t last_directive);
  void Report(std::shared_ptr<NodeStream> stream, uint64_t sequence, NodeReport report);
  void Disconnected(std::shared_ptr<NodeStream> stream);

  // --- Rendezvous. ---
  void SetKey(const core::JobId& job, const std::string& scope, const std::string& key,
              std::string value, std::function<void(const absl::Status&)> done);
  // A wait that can be given up before its answer; shared by the caller and the loop.
  struct KeyWait {
    uint64_t waiter = 0;     // Loop thread only.
    bool forgotten = false;  // Loop thread only.
  };
  std::shared_ptr<KeyWait> GetKeys(const core::JobId& job, const std::string& scope,
                                   std::vector<std::string> keys, int64_t deadline_us,
                                   Rendezvous::Callback done);
  // Its callback may still come, if it was on its way.
  void ForgetKeys(std::shared_ptr<KeyWait> wait);

  // False after a journal error and while stopped.
  bool healthy() const { return healthy_.load(); }
  Instant start_time() const { return start_time_; }

 private:
  void Run();
  void FireTimers();
  std::optional<int64_t> TimeoutUs() const;
  View Now() const { return View{core_.state(), telemetry_, clock_->Now()}; }
  // Why calls are refused on the loop thread; OK when they are not.
  absl::Status Refusal() const;
  // The same on the caller's thread, for a task that the inbox did not take.
  absl::Status InboxRefusal() const;
  // Posts a user's command; its reply comes to `done`.
  template <typename Command>
  void PostCommand(Command command, AnswerCallback done);

  // Applies, persists, releases. False when the journal failed.
  bool Apply(const core::Command& command);
  void StorageFailed(const absl::Status& status);
  void Release(const core::Effects& effects);
  void ReleaseDirective(const core::Directive& directive);
  void Publish(const core::Event& event);

  void HandleConnect(const std::shared_ptr<NodeStream>& stream,
                     const NodeRegistration& registration);
  void HandleReport(const std::shared_ptr<NodeStream>& stream, NodeReport report);
  void HandleSteps(const StepReport& report);
  void CloseEverything(const absl::Status& status);

  const ServiceOptions options_;
  const Clock* const clock_;
  const std::unique_ptr<storage::Journal> journal_;
  const Instant start_time_;
  Inbox inbox_;
  std::thread thread_;
  std::atomic<bool> healthy_{false};

  // --- Loop thread only, from here. ---
  core::Core core_;
  NodeSessions sessions_;
  Rendezvous rendezvous_;
  Telemetry telemetry_;
  StepFiles step_files_;
  Outliers outliers_;
  Watchers watchers_;
  LogStreams logs_;
  absl::Status storage_error_;
  bool stopping_ = false;
  std::optional<int64_t> wake_at_us_;
  int64_t prune_at_us_ = 0;
  uint64_t next_reply_ = 1;
  std::map<uint64_t, AnswerCallback> answers_;
};

}  // namespace fedshard::service
