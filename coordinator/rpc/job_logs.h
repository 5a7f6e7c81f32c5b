// One GetJobLogs call. See response_stream.h for lifetime and threads.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/rpc/response_stream.h"
#include "coordinator/service/service.h"
#include "fedshard/v1/job_service.pb.h"

namespace fedshard::rpc {

class JobLogsCall : public ResponseStream<v1::GetJobLogsResponse>,
                    public service::LogReader,
                    public std::enable_shared_from_this<JobLogsCall> {
 public:
  // `service` must outlive the call. Returns the reactor for gRPC.
  static JobLogsCall* Start(grpc::CallbackServerContext* context, service::Service* service,
                            const v1::GetJobLogsRequest& request);

  JobLogsCall(grpc::CallbackServerContext* context, service::Service* service);

  bool Take(const core::NodeId& node, const std::vector<service::LogLine>& lines) override;
  void EndOfLogs(const absl::Status& status) override;

 private:
  void Left() override;

  service::Service* const service_;
};

}  // namespace fedshard::rpc
