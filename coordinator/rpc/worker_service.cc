#include "coordinator/rpc/worker_service.h"

#include "coordinator/rpc/connect_stream.h"
#include "coordinator/rpc/deadline.h"
#include "coordinator/rpc/errors.h"
#include "coordinator/rpc/get_keys.h"

namespace fedshard::rpc {

grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* WorkerServiceAdapter::Connect(
    grpc::CallbackServerContext* context) {
  return ConnectStream::Start(context, service_);
}

grpc::ServerUnaryReactor* WorkerServiceAdapter::SetRendezvousKey(
    grpc::CallbackServerContext* context, const v1::SetRendezvousKeyRequest* request,
    v1::SetRendezvousKeyResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  service_->SetKey(request->job(), request->scope(), request->key(), request->value(),
                   [context, reactor](const absl::Status& status) {
                     reactor->Finish(FinishWith(context, ToWire(status)));
                   });
  return reactor;
}

grpc::ServerUnaryReactor* WorkerServiceAdapter::GetRendezvousKeys(
    grpc::CallbackServerContext* context, const v1::GetRendezvousKeysRequest* request,
    v1::GetRendezvousKeysResponse* response) {
  return GetKeysCall::Start(context, service_, DeadlineUs(*context, clock_->Now()), *request,
                            response);
}

}  // namespace fedshard::rpc
