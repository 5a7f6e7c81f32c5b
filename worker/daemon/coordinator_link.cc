#include "worker/daemon/coordinator_link.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/duration.h"
#include "common/log.h"

namespace fedshard::daemon {
namespace {

constexpr int64_t kMinBackoffUs = 100'000;
constexpr int64_t kMaxBackoffUs = 2'000'000;
// From opening a stream to Registered.
constexpr int64_t kHandshakeTimeoutUs = 10'000'000;
constexpr int64_t kLogEveryUs = 5'000'000;
// So many unacknowledged reports ask for an acknowledgement before the next heartbeat is due.
constexpr size_t kAskEvery = 512;

}  // namespace

CoordinatorLink::CoordinatorLink(std::shared_ptr<grpc::Channel> channel, const std::string& address,
                                 LinkOptions options, const Clock& clock, Callbacks callbacks)
    : stub_(v1::WorkerService::NewStub(channel)),
      address_(address),
      options_(std::move(options)),
      clock_(clock),
      callbacks_(std::move(callbacks)) {}

CoordinatorLink::~CoordinatorLink() { Stop(); }

void CoordinatorLink::Start() {
  thread_ = std::thread([this] { Run(); });
}

void CoordinatorLink::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool CoordinatorLink::Send(v1::ConnectRequest report) {
  MutexLock lock(mu_);
  if (outbox_.size() >= options_.max_unacknowledged) return false;
  report.set_sequence(next_sequence_++);
  outbox_.push_back(std::move(report));
  // Much to say in one interval: acknowledgements must keep up.
  if (outbox_.size() % kAskEvery == 0) next_heartbeat_us_ = 0;
  changed_.NotifyAll();
  return true;
}

size_t CoordinatorLink::capacity_left() const {
  MutexLock lock(mu_);
  return options_.max_unacknowledged - outbox_.size();
}

bool CoordinatorLink::Flush(int64_t timeout_us) {
  const int64_t deadline_us = clock_.Now().steady_us + timeout_us;
  MutexLock lock(mu_);
  next_heartbeat_us_ = 0;
  changed_.NotifyAll();
  while (!outbox_.empty()) {
    const int64_t left = deadline_us - clock_.Now().steady_us;
    if (left <= 0 || stopping_) return false;
    changed_.WaitFor(mu_, std::chrono::microseconds(left));
  }
  return true;
}

void CoordinatorLink::Run() {
  std::minstd_rand jitter(std::random_device{}());
  int64_t backoff_us = kMinBackoffUs;
  const int64_t give_up_us = clock_.Now().steady_us + options_.connect_timeout_us;
  int64_t logged_us = 0;
  while (true) {
    bool registered = false;
    const grpc::Status status = RunOnce(registered);
    if (registered) backoff_us = kMinBackoffUs;
    const int64_t now = clock_.Now().steady_us;
    {
      MutexLock lock(mu_);
      if (stopping_) return;
    }
    const std::string text =
        absl::StrCat("coordinator ", address_, ": ",
                     status.ok() ? "it ended the stream" : std::string(status.error_message()));
    if (status.error_code() == grpc::StatusCode::ABORTED) {
      return callbacks_.on_fatal(absl::AbortedError(text));
    }
    if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
      return callbacks_.on_fatal(absl::InvalidArgumentError(text));
    }
    if (!registered_once_ && now > give_up_us) {
      return callbacks_.on_fatal(absl::DeadlineExceededError(absl::StrCat(
          text, " (gave up after ", FormatDuration(options_.connect_timeout_us), ")")));
    }
    if (logged_us == 0 || now - logged_us > kLogEveryUs) {
      LogWarning(absl::StrCat("not connected to ", text, "; trying again"));
      logged_us = now;
    }
    MutexLock lock(mu_);
    const int64_t wait_us = backoff_us / 2 + static_cast<int64_t>(jitter() % (backoff_us / 2));
    changed_.WaitFor(mu_, std::chrono::microseconds(wait_us));
    if (stopping_) return;
    backoff_us = std::min(2 * backoff_us, kMaxBackoffUs);
  }
}

grpc::Status CoordinatorLink::RunOnce(bool& registered) {
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  {
    MutexLock lock(mu_);
    if (stopping_) return grpc::Status::CANCELLED;
    context_ = &context;
  }
  stream = stub_->Connect(&context);
  std::thread writer;
  registered = Handshake(*stream);
  if (registered) {
    writer = std::thread([this, &stream] { WriteLoop(*stream); });
    v1::ConnectResponse directive;
    while (stream->Read(&directive)) HandleDirective(directive);
  }
  {
    MutexLock lock(mu_);
    stream_open_ = false;
    changed_.NotifyAll();
  }
  if (writer.joinable()) writer.join();
  // Not canceled here: that would hide the status with which the coordinator ended the stream.
  const grpc::Status status = stream->Finish();
  MutexLock lock(mu_);
  context_ = nullptr;
  return status;
}

bool CoordinatorLink::Handshake(Stream& stream) {
  v1::ConnectRequest hello;
  *hello.mutable_register_() = options_.identity;
  {
    MutexLock lock(mu_);
    hello.mutable_register_()->set_coordinator_incarnation(coordinator_incarnation_);
    hello.mutable_register_()->set_last_directive(last_directive_);
  }
  if (!stream.Write(hello)) return false;

  // A coordinator that accepts the stream and says nothing must not hold us for ever.
  bool answered = false;
  std::thread watchdog([this, &answered] {
    const int64_t deadline_us = clock_.Now().steady_us + kHandshakeTimeoutUs;
    MutexLock lock(mu_);
    while (!answered && clock_.Now().steady_us < deadline_us) {
      changed_.WaitFor(mu_, std::chrono::milliseconds(200));
    }
    if (!answered && context_ != nullptr) context_->TryCancel();
  });
  v1::ConnectResponse first;
  const bool read = stream.Read(&first);
  {
    MutexLock lock(mu_);
    answered = true;
    changed_.NotifyAll();
  }
  watchdog.join();
  if (!read) return false;
  if (!first.has_registered()) {  // Not a coordinator that speaks this protocol.
    MutexLock lock(mu_);
    if (context_ != nullptr) context_->TryCancel();
    return false;
  }

  const v1::Registered& registered = first.registered();
  bool new_coordinator = false;
  {
    MutexLock lock(mu_);
    new_coordinator = !coordinator_incarnation_.empty() &&
                      coordinator_incarnation_ != registered.coordinator_incarnation();
  }
  if (new_coordinator) {
    LogWarning(absl::StrCat("coordinator ", address_, " was restarted; stopping all trainers"));
    callbacks_.on_new_coordinator();
  }
  MutexLock lock(mu_);
  if (new_coordinator) {
    outbox_.clear();
    next_sequence_ = 1;
    last_directive_ = 0;
  }
  coordinator_incarnation_ = registered.coordinator_incarnation();
  heartbeat_interval_us_ = std::max(1, registered.heartbeat_interval_ms()) * int64_t{1000};
  Acknowledged(registered.last_report());
  written_ = registered.last_report();
  next_heartbeat_us_ = 0;
  stream_open_ = true;
  registered_once_ = true;
  LogInfo(absl::StrCat("registered with the coordinator ", address_, " as ",
                       options_.identity.node_id()));
  return true;
}

void CoordinatorLink::Acknowledged(uint64_t last_report) {
  while (!outbox_.empty() && outbox_.front().sequence() <= last_report) outbox_.pop_front();
  changed_.NotifyAll();
}

void CoordinatorLink::WriteLoop(Stream& stream) {
  while (true) {
    v1::ConnectRequest next;
    {
      MutexLock lock(mu_);
      while (true) {
        if (!stream_open_) return;
        const auto unsent = std::find_if(
            outbox_.begin(), outbox_.end(),
            [written = written_](const auto& report) { return report.sequence() > written; });
        if (unsent != outbox_.end()) {
          next = *unsent;
          written_ = next.sequence();
          break;
        }
        const int64_t now = clock_.Now().steady_us;
        if (now >= next_heartbeat_us_) {
          next.mutable_heartbeat()->set_last_directive(last_directive_);
          next_heartbeat_us_ = now + heartbeat_interval_us_;
          break;
        }
        changed_.WaitFor(mu_, std::chrono::microseconds(next_heartbeat_us_ - now));
      }
    }
    if (!stream.Write(next)) return;  // The reader sees the end too.
  }
}

void CoordinatorLink::HandleDirective(const v1::ConnectResponse& directive) {
  if (directive.has_acknowledge()) {
    MutexLock lock(mu_);
    return Acknowledged(directive.acknowledge().last_report());
  }
  {
    MutexLock lock(mu_);
    if (directive.sequence() <= last_directive_) return;  // Sent again after a reconnect.
  }
  callbacks_.on_directive(directive);
  MutexLock lock(mu_);
  last_directive_ = directive.sequence();
}

}  // namespace fedshard::daemon
