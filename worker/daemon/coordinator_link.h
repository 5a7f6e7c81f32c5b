// The worker's end of the stream to the coordinator: registers, sends heartbeats, numbers reports
// and keeps them until they are acknowledged, reconnects with back-off, and hands directives to a
// handler once each and in order. Owned by the daemon. Send() may be called from any thread;
// callbacks come from the link's own thread, one at a time.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "fedshard/v1/worker_service.grpc.pb.h"

namespace fedshard::daemon {

struct LinkOptions {
  v1::Register identity;  // Without the fields that the link fills in.
  // Gives up when the first registration takes longer.
  int64_t connect_timeout_us = 60'000'000;
  size_t max_unacknowledged = 4096;
};

class CoordinatorLink {
 public:
  struct Callbacks {
    std::function<void(const v1::ConnectResponse&)> on_directive;
    // Another life of the coordinator than before: everything started for the former one must end
    // first.
    std::function<void()> on_new_coordinator;
    // The link is over for good: ABORTED (replaced by a newer incarnation), DEADLINE_EXCEEDED
    // (never registered), INVALID_ARGUMENT (refused), RESOURCE_EXHAUSTED (too much unacknowledged).
    std::function<void(const absl::Status&)> on_fatal;
  };

  CoordinatorLink(std::shared_ptr<grpc::Channel> channel, const std::string& address,
                  LinkOptions options, const Clock& clock, Callbacks callbacks);
  ~CoordinatorLink();

  void Start();
  // Cancels the stream and joins; unacknowledged reports are lost.
  void Stop();
  // Asks for an acknowledgement, and waits until everything sent is acknowledged; false after
  // `timeout_us`.
  bool Flush(int64_t timeout_us);

  // Queues a report. False when too much is unacknowledged: droppable reports are then dropped by
  // the caller.
  bool Send(v1::ConnectRequest report);
  // Room left before Send() refuses.
  size_t capacity_left() const;

 private:
  using Stream = grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>;

  void Run();
  // One connection, from Register to its end; whether it got as far as Registered.
  grpc::Status RunOnce(bool& registered);
  bool Handshake(Stream& stream);
  void WriteLoop(Stream& stream);
  void HandleDirective(const v1::ConnectResponse& directive);
  void Acknowledged(uint64_t last_report) REQUIRES(mu_);

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  const std::string address_;
  const LinkOptions options_;
  const Clock& clock_;
  const Callbacks callbacks_;

  mutable Mutex mu_;
  mutable CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool stream_open_ GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ GUARDED_BY(mu_) = nullptr;
  std::deque<v1::ConnectRequest> outbox_ GUARDED_BY(mu_);  // Unacknowledged, by sequence.
  uint64_t next_sequence_ GUARDED_BY(mu_) = 1;
  uint64_t written_ GUARDED_BY(mu_) = 0;  // Last sequence written to the open stream.
  uint64_t last_directive_ GUARDED_BY(mu_) = 0;
  std::string coordinator_incarnation_ GUARDED_BY(mu_);
  int64_t heartbeat_interval_us_ GUARDED_BY(mu_) = 2'000'000;
  int64_t next_heartbeat_us_ GUARDED_BY(mu_) = 0;
  bool registered_once_ = false;  // Link thread only.
  std::thread thread_;
};

}  // namespace fedshard::daemon
