// One WatchJob call. See response_stream.h for lifetime and threads.
#pragma once

#include <memory>

#include "coordinator/rpc/response_stream.h"
#include "coordinator/service/service.h"
#include "fedshard/v1/job_service.pb.h"

namespace fedshard::rpc {

class WatchJobCall : public ResponseStream<v1::WatchJobResponse>,
                     public service::JobWatcher,
                     public std::enable_shared_from_this<WatchJobCall> {
 public:
  // `service` must outlive the call. Returns the reactor for gRPC.
  static WatchJobCall* Start(grpc::CallbackServerContext* context, service::Service* service,
                             const v1::WatchJobRequest& request);

  WatchJobCall(grpc::CallbackServerContext* context, service::Service* service);

  void Show(const service::View& view, const core::Job& job, bool last) override;
  void Fail(const absl::Status& status) override;

 private:
  void Left() override;

  service::Service* const service_;
};

}  // namespace fedshard::rpc
