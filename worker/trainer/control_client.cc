#include "worker/trainer/control_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/duration.h"
#include "common/log.h"
#include "fedshard/v1/trainer_service.grpc.pb.h"
#include "worker/trainer/translate.h"

namespace fedshard::trainer {
namespace {

using std::chrono::seconds;

constexpr auto kAlivePeriod = seconds(1);
constexpr auto kStartTimeout = seconds(30);
// Of a worker that does not read: for all reports but one a decision is awaited next, so a full
// outbox means that it has taken none for many rounds.
constexpr auto kTakeTimeout = seconds(60);
constexpr auto kFinishTimeout = seconds(10);
// Between being told to end and being ended: enough to leave a collective and say goodbye, within
// the worker's own grace.
constexpr auto kExitGrace = std::chrono::milliseconds(1500);
constexpr size_t kMaxOutbox = 1024;
constexpr size_t kMaxInbox = 256;

}  // namespace

struct ControlClient::Wire {
  using Stream = grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>;

  std::string token;
  std::unique_ptr<v1::TrainerService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;

  Mutex mu;
  CondVar changed;
  std::deque<v1::AttachRequest> outbox GUARDED_BY(mu);
  bool writing GUARDED_BY(mu) = false;  // A message is on its way to the wire.
  bool closed GUARDED_BY(mu) = false;
  bool stopping GUARDED_BY(mu) = false;                 // No rendezvous any more.
  std::set<grpc::ClientContext*> calls GUARDED_BY(mu);  // Rendezvous calls under way.

  // False when the worker has not taken anything for too long. After the end of the stream reports
  // go nowhere, which is no error.
  bool Push(v1::AttachRequest request) {
    const auto deadline = std::chrono::steady_clock::now() + kTakeTimeout;
    MutexLock lock(mu);
    // Steps are only shown to people: they give way.
    const bool droppable = request.rank_report().has_steps();
    if (droppable && outbox.size() > kMaxOutbox / 2) return true;
    while (outbox.size() >= kMaxOutbox && !closed && !stopping) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      changed.WaitFor(mu, seconds(1));
    }
    if (closed || outbox.size() >= kMaxOutbox) return true;
    outbox.push_back(std::move(request));
    changed.NotifyAll();
    return true;
  }
  // Ends rendezvous calls, those to come as well.
  void StopCalls() {
    MutexLock lock(mu);
    stopping = true;
    for (grpc::ClientContext* call : calls) call->TryCancel();
    changed.NotifyAll();
  }
  void Close() {
    StopCalls();
    MutexLock lock(mu);
    closed = true;
    changed.NotifyAll();
  }
};

ControlClient::ControlClient(const std::string& socket_path, std::string token,
                             std::function<void(int exit_code)> overdue)
    : wire_(std::make_shared<Wire>()), overdue_(std::move(overdue)) {
  wire_->token = std::move(token);
  wire_->stub = v1::TrainerService::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", socket_path), grpc::InsecureChannelCredentials()));
  wire_->stream = wire_->stub->Attach(&wire_->context);
  v1::AttachRequest hello;
  hello.mutable_hello()->set_token(wire_->token);
  wire_->Push(std::move(hello));
  writer_ = std::thread([this] { WriteLoop(); });
  reader_ = std::thread([this] { ReadLoop(); });
  overdue_watcher_ = std::thread([this] { OverdueLoop(); });
}

ControlClient::~ControlClient() {
  {
    MutexLock lock(mu_);
    finishing_ = true;
    destroyed_ = true;
    changed_.NotifyAll();
  }
  wire_->Close();
  wire_->context.TryCancel();
  writer_.join();
  reader_.join();
  overdue_watcher_.join();
}

void ControlClient::WriteLoop() {
  while (true) {
    v1::AttachRequest next;
    {
      MutexLock lock(wire_->mu);
      wire_->writing = false;
      wire_->changed.NotifyAll();
      if (wire_->outbox.empty() && !wire_->closed) wire_->changed.WaitFor(wire_->mu, kAlivePeriod);
      if (wire_->closed) return;
      if (wire_->outbox.empty()) {
        next.mutable_alive();
      } else {
        next = std::move(wire_->outbox.front());
        wire_->outbox.pop_front();
      }
      wire_->writing = true;
    }
    if (!wire_->stream->Write(next)) return;  // The reader sees the end.
  }
}

void ControlClient::ReadLoop() {
  v1::AttachResponse response;
  while (wire_->stream->Read(&response)) {
    if (response.has_stop()) {
      Stop(kExitStopped, response.stop().message());
      continue;
    }
    if (response.has_start()) {
      MutexLock lock(mu_);
      start_ = TranslateStart(response.start());
      changed_.NotifyAll();
    } else if (auto directive = TranslateDirective(response.rank_directive())) {
      Receive(*std::move(directive));
    } else {
      LogWarning("a directive is unknown; is the coordinator newer than this trainer?");
    }
  }
  const grpc::Status status = wire_->stream->Finish();
  bool lost = false;
  {
    MutexLock lock(mu_);
    closed_ = true;
    lost = !finishing_;
    changed_.NotifyAll();
  }
  if (lost) {
    Stop(kExitLostWorker, absl::StrCat("the worker is gone: ", status.error_message()));
  }
  wire_->Close();
}

void ControlClient::Receive(Directive directive) {
  {
    MutexLock lock(mu_);
    if (inbox_.size() < kMaxInbox) {
      inbox_.push_back(std::move(directive));
      changed_.NotifyAll();
      return;
    }
  }
  // Dropping one would leave the rank waiting for it.
  const std::string why = absl::StrCat("more than ", kMaxInbox, " directives at once");
  SendFailure(Failure("INTERNAL", why));
  Stop(kExitFailed, why);
}

// Ends a process that cannot leave a collective or a computation.
void ControlClient::OverdueLoop() {
  int exit_code = 0;
  {
    MutexLock lock(mu_);
    while (!stopped_ && !destroyed_) changed_.WaitFor(mu_, seconds(60));
    const auto deadline = std::chrono::steady_clock::now() + kExitGrace;
    while (!destroyed_ && std::chrono::steady_clock::now() < deadline) {
      changed_.WaitFor(mu_, kExitGrace);
    }
    if (destroyed_) return;
    exit_code = stopped_->exit_code;
  }
  overdue_(exit_code);
}

void ControlClient::Stop(int exit_code, const std::string& why) {
  {
    MutexLock lock(mu_);
    if (stopped_) return;
    stopped_.emplace(exit_code, why);
    changed_.NotifyAll();
  }
  LogWarning(absl::StrCat("stopping: ", why));
  wire_->StopCalls();
  MutexLock lock(abort_mu_);
  if (abort_) abort_();
}

void ControlClient::SetAbort(std::function<void()> abort) {
  MutexLock lock(abort_mu_);
  abort_ = std::move(abort);
  // A stop that came before there was anything to abort.
  if (abort_ && stopped()) abort_();
}

std::optional<Stopped> ControlClient::stopped() {
  MutexLock lock(mu_);
  return stopped_;
}

void ControlClient::ThrowIfStopped() {
  MutexLock lock(mu_);
  if (stopped_) throw Stopped(*stopped_);
}

RankStart ControlClient::Attach() {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  MutexLock lock(mu_);
  while (!start_) {
    if (stopped_) throw Stopped(*stopped_);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Stopped(kExitLostWorker, "the worker did not say what to start");
    }
    changed_.WaitFor(mu_, std::chrono::milliseconds(500));
  }
  return *start_;
}

Directive ControlClient::Next(int64_t patience_us) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(patience_us);
  MutexLock lock(mu_);
  while (true) {
    if (stopped_) throw Stopped(*stopped_);
    if (!inbox_.empty()) {
      Directive next = std::move(inbox_.front());
      inbox_.pop_front();
      return next;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Failure("INTERNAL", absl::StrCat("no decision of the coordinator for ",
                                             FormatDuration(patience_us)));
    }
    changed_.WaitFor(mu_, std::chrono::milliseconds(500));
  }
}

void ControlClient::Send(v1::AttachRequest request) {
  ThrowIfStopped();
  if (wire_->Push(std::move(request))) return;
  Stop(kExitLostWorker, "the worker takes no reports");
  ThrowIfStopped();
}

void ControlClient::SendSteps(const std::vector<StepRecord>& steps) { Send(TranslateSteps(steps)); }
void ControlClient::SendReady(const GroupReady& ready) { Send(TranslateReady(ready)); }
void ControlClient::SendVote(const Vote& vote) { Send(TranslateVote(vote)); }
void ControlClient::SendEvaluation(const Evaluation& evaluation) {
  Send(TranslateEvaluation(evaluation));
}
void ControlClient::SendSummary(const Summary& summary) { Send(TranslateSummary(summary)); }

void ControlClient::SendCheckpoint(const CheckpointOutcome& outcome) {
  Send(TranslateCheckpoint(outcome));
}

void ControlClient::SendFailure(const Failure& failure) {
  wire_->Push(TranslateFailure(failure.reason, failure.what()));
}

void ControlClient::Finish() {
  const auto deadline = std::chrono::steady_clock::now() + kFinishTimeout;
  {
    MutexLock lock(mu_);
    finishing_ = true;
  }
  bool taken = false;
  {
    MutexLock lock(wire_->mu);
    while (!wire_->closed && (!wire_->outbox.empty() || wire_->writing) &&
           std::chrono::steady_clock::now() < deadline) {
      wire_->changed.WaitFor(wire_->mu, std::chrono::milliseconds(100));
    }
    taken = wire_->outbox.empty() && !wire_->writing;
    wire_->closed = true;  // The writer ends.
    wire_->changed.NotifyAll();
  }
  if (!taken) {
    // Two writers on one stream are not allowed, and the writer still is inside.
    wire_->context.TryCancel();
    return;
  }
  wire_->stream->WritesDone();
  // The worker answers the end of our stream with the end of its own, once it has read everything.
  MutexLock lock(mu_);
  while (!closed_ && std::chrono::steady_clock::now() < deadline) {
    changed_.WaitFor(mu_, std::chrono::milliseconds(100));
  }
}

class ControlClient::ScopedKeys : public collective::KeyValueClient {
 public:
  ScopedKeys(std::shared_ptr<Wire> wire, std::string scope)
      : wire_(std::move(wire)), scope_(std::move(scope)) {}

  void Set(const std::string& key, const std::vector<uint8_t>& value) override {
    v1::SetTrainerKeyRequest request;
    request.set_token(wire_->token);
    request.set_scope(scope_);
    request.set_key(key);
    request.set_value(value.data(), value.size());
    v1::SetTrainerKeyResponse response;
    Call(std::chrono::milliseconds(10'000), key, [&](grpc::ClientContext* context) {
      return wire_->stub->SetTrainerKey(context, request, &response);
    });
  }

  std::vector<std::vector<uint8_t>> Get(const std::vector<std::string>& keys,
                                        std::chrono::milliseconds timeout) override {
    v1::GetTrainerKeysRequest request;
    request.set_token(wire_->token);
    request.set_scope(scope_);
    for (const std::string& key : keys) request.add_keys(key);
    v1::GetTrainerKeysResponse response;
    Call(timeout, keys.empty() ? "" : keys[0], [&](grpc::ClientContext* context) {
      return wire_->stub->GetTrainerKeys(context, request, &response);
    });
    std::vector<std::vector<uint8_t>> values;
    for (const std::string& value : response.values())
      values.emplace_back(value.begin(), value.end());
    return values;
  }

 private:
  template <typename CallFn>
  void Call(std::chrono::milliseconds timeout, const std::string& key, CallFn call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    {
      MutexLock lock(wire_->mu);
      if (wire_->closed || wire_->stopping) {
        throw std::runtime_error("rendezvous: the rank has been told to end");
      }
      wire_->calls.insert(&context);
    }
    const grpc::Status status = call(&context);
    {
      MutexLock lock(wire_->mu);
      wire_->calls.erase(&context);
    }
    if (!status.ok()) {
      throw std::runtime_error(
          absl::StrCat("rendezvous key ", scope_, "/", key, ": ", status.error_message()));
    }
  }

  std::shared_ptr<Wire> wire_;
  std::string scope_;
};

std::shared_ptr<collective::KeyValueClient> ControlClient::Keys(const std::string& scope) {
  return std::make_shared<ScopedKeys>(wire_, scope);
}

}  // namespace fedshard::trainer
