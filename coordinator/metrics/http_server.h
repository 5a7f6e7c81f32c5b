// The coordinator's HTTP pages: /metrics, /healthz, /readyz and a landing page. Plain HTTP:
// civetweb's TLS does not work with OpenSSL 3, so a proxy adds it where it is wanted. Owned by
// main; Start and Stop from one thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/metrics/snapshot.h"
#include "coordinator/service/service.h"

class CivetServer;
class CivetHandler;

namespace fedshard::metrics {

struct HttpServerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; the host is an IP address.
  std::chrono::milliseconds snapshot_timeout{5000};
  int64_t retention_us = 300'000'000;  // Of lost nodes' series.
};

class HttpServer {
 public:
  // `service` must outlive the server.
  HttpServer(HttpServerOptions options, service::Service* service);
  ~HttpServer();

  // UNAVAILABLE when the address cannot be listened on.
  absl::Status Start();
  void Stop();
  // HOST:PORT with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  // Waits for the loop, at most for the timeout. Any thread.
  absl::StatusOr<Snapshot> Ask() const;

  const HttpServerOptions options_;
  service::Service* const service_;
  std::vector<std::unique_ptr<CivetHandler>> handlers_;  // Outlive the server.
  std::unique_ptr<CivetServer> server_;
  int port_ = 0;
  std::string address_;
};

}  // namespace fedshard::metrics
