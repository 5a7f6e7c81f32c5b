// One GetRendezvousKeys call: a wait that ends with its keys, its deadline or its caller.
// Thread-safe; keeps itself alive until OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "coordinator/rpc/errors.h"
#include "coordinator/service/service.h"
#include "fedshard/v1/worker_service.pb.h"

namespace fedshard::rpc {

class GetKeysCall : public grpc::ServerUnaryReactor,
                    public std::enable_shared_from_this<GetKeysCall> {
 public:
  // `service` must outlive the call.
  static GetKeysCall* Start(grpc::CallbackServerContext* context, service::Service* service,
                            int64_t deadline_us, const v1::GetRendezvousKeysRequest& request,
                            v1::GetRendezvousKeysResponse* response);

  GetKeysCall(grpc::CallbackServerContext* context, service::Service* service,
              v1::GetRendezvousKeysResponse* response)
      : context_(context), service_(service), response_(response) {}

 private:
  void OnCancel() override;
  void OnDone() override;

  void Answer(absl::StatusOr<std::vector<std::string>> values) EXCLUDES(mu_);

  grpc::CallbackServerContext* const context_;
  service::Service* const service_;
  v1::GetRendezvousKeysResponse* const response_;
  Mutex mu_;
  std::shared_ptr<GetKeysCall> self_ GUARDED_BY(mu_);
  std::shared_ptr<service::Service::KeyWait> wait_ GUARDED_BY(mu_);
  bool finished_ GUARDED_BY(mu_) = false;
};

}  // namespace fedshard::rpc
