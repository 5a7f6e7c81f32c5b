#include "coordinator/rpc/watch_job.h"

#include "coordinator/rpc/names.h"
#include "coordinator/rpc/translate_job.h"

namespace fedshard::rpc {

WatchJobCall* WatchJobCall::Start(grpc::CallbackServerContext* context, service::Service* service,
                                  const v1::WatchJobRequest& request) {
  const auto call = std::make_shared<WatchJobCall>(context, service);
  call->Begin(call);
  Violations violations;
  const core::JobId job = ParseJobName(request.name(), "name", violations);
  if (violations.empty()) {
    service->Watch(job, call);
  } else {
    call->End(ToWire(violations));
  }
  return call.get();
}

// Only the latest state waits for a slow client, so one place is enough.
WatchJobCall::WatchJobCall(grpc::CallbackServerContext* context, service::Service* service)
    : ResponseStream(context, 1), service_(service) {}

void WatchJobCall::Show(const service::View& view, const core::Job& job, bool last) {
  v1::WatchJobResponse response;
  *response.mutable_job() = JobToProto(job, view);
  PushLatest(std::move(response));
  if (last) End(ToWire(absl::OkStatus()));
}

void WatchJobCall::Fail(const absl::Status& status) { End(ToWire(status)); }

void WatchJobCall::Left() { service_->Unwatch(shared_from_this()); }

}  // namespace fedshard::rpc
