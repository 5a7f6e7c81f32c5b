// One Connect stream of a worker. Reads one report at a time: the next is asked for when the
// service has dealt with the last, so a worker that floods is slowed down by flow control.
// Thread-safe; keeps itself alive from Start to OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>

#include "common/mutex.h"
#include "coordinator/rpc/errors.h"
#include "coordinator/service/service.h"
#include "fedshard/v1/worker_service.pb.h"

namespace fedshard::rpc {

class ConnectStream : public grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>,
                      public service::NodeStream,
                      public std::enable_shared_from_this<ConnectStream> {
 public:
  // `service` must outlive the stream. Returns the reactor for gRPC.
  static ConnectStream* Start(grpc::CallbackServerContext* context, service::Service* service);

  ConnectStream(grpc::CallbackServerContext* context, service::Service* service)
      : context_(context), service_(service) {}

  // NodeStream.
  void Send(const service::NodeMessage& message) override;
  void ReadNext() override;
  void Close(const absl::Status& status) override;

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void HandleRegister();
  void HandleReport();
  void End(const WireError& error) EXCLUDES(mu_);

  grpc::CallbackServerContext* const context_;
  service::Service* const service_;
  // Touched by one read at a time.
  v1::ConnectRequest request_;
  bool registered_ = false;

  Mutex mu_;
  std::shared_ptr<ConnectStream> self_ GUARDED_BY(mu_);
  // Bounded by the session's outbox: it closes the stream when too much is unacknowledged.
  std::deque<service::NodeMessage> queue_ GUARDED_BY(mu_);
  v1::ConnectResponse current_ GUARDED_BY(mu_);
  bool writing_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;
};

}  // namespace fedshard::rpc
