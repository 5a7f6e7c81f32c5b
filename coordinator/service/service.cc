#include "coordinator/service/service.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/service/errors.h"

namespace fedshard::service {
namespace {

constexpr int64_t kPruneIntervalUs = 10'000'000;

absl::Status ShuttingDown() {
  return WithReason(absl::UnavailableError("the coordinator is shutting down"), kShuttingDown);
}

core::Reply ErrorReply(const absl::Status& status) {
  core::Reply reply;
  reply.status = status;
  reply.reason = ReasonOf(status);
  return reply;
}

}  // namespace

Service::Service(ServiceOptions options, const Clock* clock,
                 std::unique_ptr<storage::Journal> journal)
    : options_(std::move(options)),
      clock_(clock),
      journal_(std::move(journal)),
      start_time_(clock->Now()),
      inbox_(options_.inbox_capacity),
      core_(options_.core),
      sessions_(options_.sessions),
      rendezvous_(options_.rendezvous),
      telemetry_(options_.telemetry),
      step_files_(options_.data_directory),
      watchers_(options_.watchers),
      logs_(options_.logs, [this](const core::NodeId& node, const std::string& incarnation,
                                  NodeDirective directive) {
        sessions_.Send(node, incarnation, std::move(directive));
      }) {}

Service::~Service() { Stop(); }

void Service::Start() {
  healthy_ = true;
  thread_ = std::thread([this] { Run(); });
}

void Service::Stop() {
  healthy_ = false;
  inbox_.Post([this] {
    stopping_ = true;
    CloseEverything(ShuttingDown());
  });
  inbox_.Close();
  if (thread_.joinable()) thread_.join();
}

void Service::Run() {
  while (true) {
    std::deque<Inbox::Task> tasks = inbox_.Take(TimeoutUs());
    if (tasks.empty() && inbox_.closed()) break;
    for (Inbox::Task& task : tasks) {
      task();
      task = nullptr;  // What it holds may have to go before the next one runs.
    }
    if (!stopping_) FireTimers();
  }
  const absl::Status closed = journal_->Close();
  if (!closed.ok()) LogWarning(absl::StrCat("closing the journal: ", closed.ToString()));
}

void Service::FireTimers() {
  const int64_t now_us = clock_->Now().steady_us;
  if (wake_at_us_ && *wake_at_us_ <= now_us && storage_error_.ok()) Apply(core::Tick{});
  rendezvous_.Expire(now_us);
  logs_.Expire(now_us);
  if (prune_at_us_ <= now_us) {
    telemetry_.Prune(core_.state(), now_us);
    prune_at_us_ = now_us + kPruneIntervalUs;
  }
  if (storage_error_.ok()) watchers_.Flush(Now());
}

std::optional<int64_t> Service::TimeoutUs() const {
  int64_t next = prune_at_us_;
  const bool ticking = storage_error_.ok();
  for (const std::optional<int64_t>& deadline :
       {ticking ? wake_at_us_ : std::nullopt, rendezvous_.next_deadline_us(),
        logs_.next_deadline_us(), ticking ? watchers_.next_deadline_us() : std::nullopt}) {
    if (deadline) next = std::min(next, *deadline);
  }
  return std::max<int64_t>(0, next - clock_->Now().steady_us);
}

absl::Status Service::Refusal() const { return stopping_ ? ShuttingDown() : storage_error_; }

absl::Status Service::InboxRefusal() const {
  if (inbox_.closed()) return ShuttingDown();
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        "the coordinator has ", options_.inbox_capacity, " requests waiting")),
                    kQueueFull);
}

template <typename Command>
void Service::PostCommand(Command command, AnswerCallback done) {
  const bool posted = inbox_.TryPost([this, command = std::move(command), done]() mutable {
    if (const absl::Status refusal = Refusal(); !refusal.ok()) {
      return done(ErrorReply(refusal), nullptr);
    }
    command.reply_to = next_reply_++;
    answers_[command.reply_to] = done;
    Apply(command);
  });
  if (!posted) done(ErrorReply(InboxRefusal()), nullptr);
}

void Service::SubmitJob(core::SubmitJob command, AnswerCallback done) {
  PostCommand(std::move(command), std::move(done));
}

void Service::CancelJob(core::CancelJob command, AnswerCallback done) {
  PostCommand(std::move(command), std::move(done));
}

void Service::Query(QueryCallback query) {
  const bool posted = inbox_.TryPost([this, query] {
    if (const absl::Status refusal = Refusal(); !refusal.ok()) return query(refusal, nullptr);
    const View view = Now();
    query(absl::OkStatus(), &view);
  });
  if (!posted) query(InboxRefusal(), nullptr);
}

void Service::Watch(const core::JobId& job, std::shared_ptr<JobWatcher> watcher) {
  const bool posted = inbox_.TryPost([this, job, watcher] {
    if (const absl::Status refusal = Refusal(); !refusal.ok()) return watcher->Fail(refusal);
    watchers_.Add(Now(), job, watcher);
  });
  if (!posted) watcher->Fail(InboxRefusal());
}

void Service::Unwatch(std::shared_ptr<JobWatcher> watcher) {
  inbox_.Post([this, watcher] { watchers_.Remove(watcher.get()); });
}

void Service::ReadLogs(LogRequest request, std::shared_ptr<LogReader> reader) {
  const bool posted = inbox_.TryPost([this, request, reader] {
    if (const absl::Status refusal = Refusal(); !refusal.ok()) return reader->EndOfLogs(refusal);
    logs_.Open(core_.state(), request, reader, clock_->Now().steady_us);
  });
  if (!posted) reader->EndOfLogs(InboxRefusal());
}

void Service::StopLogs(std::shared_ptr<LogReader> reader) {
  inbox_.Post([this, reader] { logs_.Leave(reader.get()); });
}

void Service::SetKey(const core::JobId& job, const std::string& scope, const std::string& key,
                     std::string value, std::function<void(const absl::Status&)> done) {
  const bool posted =
      inbox_.TryPost([this, job, scope, key, value = std::move(value), done]() mutable {
        if (const absl::Status refusal = Refusal(); !refusal.ok()) return done(refusal);
        done(rendezvous_.Set(job, scope, key, std::move(value)));
      });
  if (!posted) done(InboxRefusal());
}

std::shared_ptr<Service::KeyWait> Service::GetKeys(const core::JobId& job, const std::string& scope,
                                                   std::vector<std::string> keys,
                                                   int64_t deadline_us, Rendezvous::Callback done) {
  auto wait = std::make_shared<KeyWait>();
  const bool posted =
      inbox_.TryPost([this, wait, job, scope, keys = std::move(keys), deadline_us, done]() mutable {
        if (wait->forgotten) return done(absl::CancelledError("the caller left"));
        if (const absl::Status refusal = Refusal(); !refusal.ok()) return done(refusal);
        wait->waiter = rendezvous_.Get(job, scope, std::move(keys), deadline_us, done);
      });
  if (!posted) done(InboxRefusal());
  return wait;
}

void Service::ForgetKeys(std::shared_ptr<KeyWait> wait) {
  inbox_.Post([this, wait] {
    wait->forgotten = true;
    rendezvous_.Forget(wait->waiter);
  });
}

void Service::CloseEverything(const absl::Status& status) {
  sessions_.CloseAll(status);
  watchers_.CloseAll(status);
  logs_.CloseAll(status);
  rendezvous_.Close(status);
  for (auto& [id, done] : std::exchange(answers_, {})) done(ErrorReply(status), nullptr);
}

}  // namespace fedshard::service
