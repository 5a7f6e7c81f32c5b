#include "coordinator/rpc/get_keys.h"

#include <utility>

namespace fedshard::rpc {

GetKeysCall* GetKeysCall::Start(grpc::CallbackServerContext* context, service::Service* service,
                                int64_t deadline_us, const v1::GetRendezvousKeysRequest& request,
                                v1::GetRendezvousKeysResponse* response) {
  const auto call = std::make_shared<GetKeysCall>(context, service, response);
  {
    MutexLock lock(call->mu_);
    call->self_ = call;
  }
  // The answer may come before this returns, also on this thread: no lock is held.
  auto wait = service->GetKeys(
      request.job(), request.scope(), {request.keys().begin(), request.keys().end()}, deadline_us,
      [call](absl::StatusOr<std::vector<std::string>> values) { call->Answer(std::move(values)); });
  MutexLock lock(call->mu_);
  call->wait_ = std::move(wait);
  return call.get();
}

void GetKeysCall::Answer(absl::StatusOr<std::vector<std::string>> values) {
  MutexLock lock(mu_);
  if (finished_) return;
  finished_ = true;
  if (values.ok()) {
    for (std::string& value : *values) response_->add_values(std::move(value));
  }
  Finish(FinishWith(context_, ToWire(values.status())));
}

void GetKeysCall::OnCancel() {
  std::shared_ptr<service::Service::KeyWait> wait;
  {
    MutexLock lock(mu_);
    wait = wait_;
  }
  if (wait) service_->ForgetKeys(std::move(wait));
  Answer(absl::CancelledError("the caller left"));
}

void GetKeysCall::OnDone() {
  std::shared_ptr<GetKeysCall> self;  // Dies after the lock.
  MutexLock lock(mu_);
  self = std::move(self_);
}

}  // namespace fedshard::rpc
