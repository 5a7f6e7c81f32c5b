// WorkerService as gRPC sees it. Decides nothing and never blocks. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include "common/clock.h"
#include "coordinator/service/service.h"
#include "fedshard/v1/worker_service.grpc.pb.h"

namespace fedshard::rpc {

class WorkerServiceAdapter final : public v1::WorkerService::CallbackService {
 public:
  // `service` and `clock` must outlive the adapter and all its calls.
  WorkerServiceAdapter(service::Service* service, const Clock* clock)
      : service_(service), clock_(clock) {}

  grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* Connect(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* SetRendezvousKey(grpc::CallbackServerContext* context,
                                             const v1::SetRendezvousKeyRequest* request,
                                             v1::SetRendezvousKeyResponse* response) override;
  grpc::ServerUnaryReactor* GetRendezvousKeys(grpc::CallbackServerContext* context,
                                              const v1::GetRendezvousKeysRequest* request,
                                              v1::GetRendezvousKeysResponse* response) override;

 private:
  service::Service* const service_;
  const Clock* const clock_;
};

}  // namespace fedshard::rpc
