// JobService as gRPC sees it: checks the form of requests, translates, posts to the service's loop.
// Decides nothing and never blocks. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include "coordinator/service/service.h"
#include "fedshard/v1/job_service.grpc.pb.h"

namespace fedshard::rpc {

class JobServiceAdapter final : public v1::JobService::CallbackService {
 public:
  // `service` must outlive the adapter and all its calls.
  explicit JobServiceAdapter(service::Service* service) : service_(service) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override;
  grpc::ServerUnaryReactor* ListGroups(grpc::CallbackServerContext* context,
                                       const v1::ListGroupsRequest* request,
                                       v1::ListGroupsResponse* response) override;
  grpc::ServerUnaryReactor* ListRounds(grpc::CallbackServerContext* context,
                                       const v1::ListRoundsRequest* request,
                                       v1::ListRoundsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override;
  grpc::ServerWriteReactor<v1::GetJobLogsResponse>* GetJobLogs(
      grpc::CallbackServerContext* context, const v1::GetJobLogsRequest* request) override;

 private:
  service::Service* const service_;
};

}  // namespace fedshard::rpc
