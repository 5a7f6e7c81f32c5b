// The coordinator's gRPC server: both services, health, limits. Owned by main; Start and Stop from
// one thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"
#include "coordinator/rpc/job_service.h"
#include "coordinator/rpc/worker_service.h"
#include "coordinator/service/service.h"

namespace fedshard::rpc {

// Larger requests are refused by gRPC with RESOURCE_EXHAUSTED and both sizes in the message.
inline constexpr int kMaxRequestBytes = 4 << 20;

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT, port 0 = any.
  bool reflection = false;
};

class Server {
 public:
  // `service` and `clock` must outlive the server.
  Server(ServerOptions options, service::Service* service, const Clock* clock);
  ~Server();

  // ALREADY_EXISTS ("address already in use") when the port is taken; INVALID_ARGUMENT when the
  // address is malformed; UNAVAILABLE when it cannot be listened on for another reason.
  absl::Status Start();
  // HOST:PORT with the port that was bound.
  const std::string& address() const { return address_; }

  // Health says NOT_SERVING from now on. Then stop the service (it ends its own streams), then
  // Stop.
  void Drain();
  // Waits for open calls until the deadline, then cancels them. Idempotent.
  void Stop(std::chrono::milliseconds grace);

 private:
  const ServerOptions options_;
  JobServiceAdapter jobs_;
  WorkerServiceAdapter workers_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace fedshard::rpc
