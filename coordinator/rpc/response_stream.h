// Base of the server-streaming calls: a bounded queue of responses in front of gRPC's
// one-write-at-a-time, and an orderly end. Thread-safe. An object keeps itself alive from Begin to
// OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "common/mutex.h"
#include "coordinator/rpc/errors.h"

namespace fedshard::rpc {

template <typename Response>
class ResponseStream : public grpc::ServerWriteReactor<Response> {
 public:
  ResponseStream(grpc::CallbackServerContext* context, size_t max_queued)
      : context_(context), max_queued_(max_queued) {}

 protected:
  // Call first, with the object's own shared pointer.
  void Begin(std::shared_ptr<ResponseStream> self) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    self_ = std::move(self);
  }
  // Queues a response. False when the queue is full: the client does not read. True and nothing
  // after the end.
  bool Push(Response response) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (end_) return true;
    if (queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(response));
    Advance();
    return true;
  }
  // Replaces what is still queued: for states, of which only the latest matters.
  void PushLatest(Response response) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (end_) return;
    queue_.clear();
    queue_.push_back(std::move(response));
    Advance();
  }
  // Ends the call when all queued responses are written. The first end wins.
  void End(WireError error) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (end_) return;
    end_ = std::move(error);
    Advance();
  }
  // The client canceled, its deadline passed, or the connection broke.
  virtual void Left() = 0;

 private:
  void OnWriteDone(bool ok) final EXCLUDES(mu_) {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok) {
      queue_.clear();
      if (!end_) end_ = ToWire(absl::CancelledError("the client is gone"));
    }
    Advance();
  }
  void OnCancel() final EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      queue_.clear();
      if (!end_) end_ = ToWire(absl::CancelledError("the client is gone"));
      Advance();
    }
    Left();
  }
  void OnDone() final EXCLUDES(mu_) {
    std::shared_ptr<ResponseStream> self;  // Dies after the lock.
    MutexLock lock(mu_);
    self = std::move(self_);
  }

  void Advance() REQUIRES(mu_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      current_ = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      this->StartWrite(&current_);
    } else if (end_) {
      finished_ = true;
      this->Finish(FinishWith(context_, *end_));
    }
  }

  grpc::CallbackServerContext* const context_;
  const size_t max_queued_;
  Mutex mu_;
  std::shared_ptr<ResponseStream> self_ GUARDED_BY(mu_);
  std::deque<Response> queue_ GUARDED_BY(mu_);
  Response current_ GUARDED_BY(mu_);
  bool writing_ GUARDED_BY(mu_) = false;
  bool finished_ GUARDED_BY(mu_) = false;
  std::optional<WireError> end_ GUARDED_BY(mu_);
};

}  // namespace fedshard::rpc
