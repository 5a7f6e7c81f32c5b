// TrainerService on a unix socket: trainers attach, report and rendezvous through it. Owned by the
// daemon.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fedshard/v1/trainer_service.grpc.pb.h"
#include "fedshard/v1/worker_service.grpc.pb.h"
#include "worker/daemon/rank_sessions.h"

namespace fedshard::daemon {

class TrainerServer : public v1::TrainerService::Service {
 public:
  struct Callbacks {
    // Anything heard from the trainer.
    std::function<void(const TrainerId&)> on_alive;
    std::function<void(const TrainerId&, const v1::RankReport&)> on_report;
  };

  // Listens on unix:`socket_path`. Rendezvous calls go on to the coordinator over `channel`.
  // UNAVAILABLE when the socket cannot be bound, or its folder is another worker's: gRPC replaces a
  // socket that exists, so the folder is locked.
  static absl::StatusOr<std::unique_ptr<TrainerServer>> Start(
      const std::string& socket_path, RankSessions& sessions,
      std::shared_ptr<grpc::Channel> channel, Callbacks callbacks);
  // Cancels all streams.
  ~TrainerServer() override;

  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) override;
  grpc::Status SetTrainerKey(grpc::ServerContext* context, const v1::SetTrainerKeyRequest* request,
                             v1::SetTrainerKeyResponse* response) override;
  grpc::Status GetTrainerKeys(grpc::ServerContext* context,
                              const v1::GetTrainerKeysRequest* request,
                              v1::GetTrainerKeysResponse* response) override;

 private:
  TrainerServer(RankSessions& sessions, std::shared_ptr<grpc::Channel> channel,
                Callbacks callbacks);

  RankSessions& sessions_;
  const std::unique_ptr<v1::WorkerService::Stub> coordinator_;
  const Callbacks callbacks_;
  std::unique_ptr<grpc::Server> server_;
  int lock_fd_ = -1;
};

}  // namespace fedshard::daemon
