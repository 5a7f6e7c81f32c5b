#include "coordinator/rpc/connect_stream.h"

#include <optional>
#include <utility>
#include <variant>

#include "coordinator/rpc/translate_worker.h"

namespace fedshard::rpc {

ConnectStream* ConnectStream::Start(grpc::CallbackServerContext* context,
                                    service::Service* service) {
  const auto stream = std::make_shared<ConnectStream>(context, service);
  MutexLock lock(stream->mu_);
  stream->self_ = stream;
  stream->StartRead(&stream->request_);
  return stream.get();
}

void ConnectStream::Send(const service::NodeMessage& message) {
  MutexLock lock(mu_);
  if (ended_) return;
  if (!writing_) {
    writing_ = true;
    current_ = MessageToProto(message);
    return StartWrite(&current_);
  }
  // Only the newest acknowledgement matters.
  const auto is_acknowledge = [](const service::NodeMessage& one) {
    return std::holds_alternative<service::Acknowledge>(one.directive);
  };
  if (is_acknowledge(message) && !queue_.empty() && is_acknowledge(queue_.back())) {
    queue_.back() = message;
  } else {
    queue_.push_back(message);
  }
}

void ConnectStream::ReadNext() {
  MutexLock lock(mu_);
  if (!ended_) StartRead(&request_);
}

void ConnectStream::Close(const absl::Status& status) { End(ToWire(status)); }

void ConnectStream::End(const WireError& error) {
  MutexLock lock(mu_);
  if (ended_) return;
  ended_ = true;
  queue_.clear();
  Finish(FinishWith(context_, error));
}

void ConnectStream::OnReadDone(bool ok) {
  if (!ok) {
    // The worker has closed its side, or the connection broke.
    service_->Disconnected(shared_from_this());
    return End(ToWire(absl::OkStatus()));
  }
  if (!registered_) return HandleRegister();
  HandleReport();
}

void ConnectStream::HandleRegister() {
  Violations violations;
  if (!request_.has_register_()) {
    violations.Add("register", "must be the first message of the stream");
    return End(ToWire(violations));
  }
  service::NodeRegistration registration = RegistrationFromProto(request_.register_(), violations);
  if (!violations.empty()) return End(ToWire(violations));
  registered_ = true;
  service_->Connect(shared_from_this(), std::move(registration));
}

void ConnectStream::HandleReport() {
  if (request_.has_heartbeat()) {
    return service_->Heartbeat(shared_from_this(), request_.heartbeat().last_directive());
  }
  std::optional<service::NodeReport> report = ReportFromProto(request_);
  if (report) return service_->Report(shared_from_this(), request_.sequence(), *std::move(report));
  Violations violations;
  violations.Add("report", request_.has_register_() ? "this stream is registered already"
                                                    : "is missing or unknown");
  service_->Disconnected(shared_from_this());
  End(ToWire(violations));
}

void ConnectStream::OnWriteDone(bool ok) {
  MutexLock lock(mu_);
  writing_ = false;
  // A failed write means a broken stream: the pending read reports it.
  if (!ok || ended_ || queue_.empty()) return;
  writing_ = true;
  current_ = MessageToProto(queue_.front());
  queue_.pop_front();
  StartWrite(&current_);
}

void ConnectStream::OnCancel() {
  service_->Disconnected(shared_from_this());
  End(ToWire(absl::CancelledError("the worker is gone")));
}

void ConnectStream::OnDone() {
  std::shared_ptr<ConnectStream> self;  // Dies after the lock.
  MutexLock lock(mu_);
  self = std::move(self_);
}

}  // namespace fedshard::rpc
