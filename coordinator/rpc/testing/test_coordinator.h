// A coordinator in the test's process: the real service and the real gRPC server on a port of the
// system's choice.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "coordinator/rpc/errors.h"
#include "coordinator/rpc/server.h"
#include "coordinator/service/service.h"
#include "coordinator/storage/memory_journal.h"
#include "fedshard/v1/job_service.grpc.pb.h"
#include "fedshard/v1/worker_service.grpc.pb.h"

namespace fedshard::rpc {

class TestCoordinator {
 public:
  explicit TestCoordinator(
      service::ServiceOptions options = {},
      std::unique_ptr<storage::Journal> journal = std::make_unique<storage::MemoryJournal>())
      : service_(WithIncarnation(std::move(options)), &clock_, std::move(journal)),
        server_({}, &service_, &clock_) {
    service_.Start();
    const absl::Status status = server_.Start();
    if (!status.ok()) ADD_FAILURE() << status;
    channel_ = grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials());
    jobs_ = v1::JobService::NewStub(channel_);
    workers_ = v1::WorkerService::NewStub(channel_);
  }
  ~TestCoordinator() { Stop(); }

  // As main does it.
  void Stop() {
    server_.Drain();
    service_.Stop();
    server_.Stop(std::chrono::milliseconds(3000));
  }

  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::WorkerService::Stub& workers() { return *workers_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  const std::string& address() const { return server_.address(); }
  service::Service& service() { return service_; }
  const Clock& clock() const { return clock_; }

 private:
  static service::ServiceOptions WithIncarnation(service::ServiceOptions options) {
    options.sessions.coordinator_incarnation = "c1";
    return options;
  }

  const SystemClock clock_;
  service::Service service_;
  Server server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
};

// A client context whose deadline is far above what is expected.
struct Call {
  Call() { context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30)); }
  // From the trailer of the finished call; empty when there was none.
  v1::ErrorDetail Detail() const {
    v1::ErrorDetail detail;
    const auto& trailer = context.GetServerTrailingMetadata();
    const auto found = trailer.find(kErrorTrailer);
    if (found != trailer.end()) {
      EXPECT_TRUE(detail.ParseFromArray(found->second.data(), found->second.size()));
    }
    return detail;
  }
  grpc::ClientContext context;
};

}  // namespace fedshard::rpc
