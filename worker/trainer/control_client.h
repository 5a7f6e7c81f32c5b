// The rank's life line to its worker: one stream on a unix socket, with threads of its own for both
// directions, and the rendezvous calls. When the stream closes or a Stop comes, the model's
// collectives are aborted, waiting calls throw Stopped, and a process that still has not exited a
// moment later is ended. Owned by main. Control's functions are for the training thread; Stop(),
// SetAbort(), stopped() and the key clients may be used from any thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "worker/collective/key_value.h"
#include "worker/trainer/control.h"

namespace fedshard::v1 {
class AttachRequest;
}

namespace fedshard::trainer {

class ControlClient : public Control {
 public:
  // Connects and says hello; blocks until the worker accepts, or is found not to be there.
  // `overdue` ends the process with the exit code that it gets: called, from a thread of its own,
  // when this object still exists 1.5 s after the rank was told to end.
  ControlClient(const std::string& socket_path, std::string token,
                std::function<void(int exit_code)> overdue);
  // Ends the stream. No call of Stop() may be under way.
  ~ControlClient() override;

  // Waits for Start. Throws Stopped when the worker is not there or does not answer.
  RankStart Attach();
  // Called once when the rank has to stop; at once if it already has. From the thread that learns
  // of it.
  void SetAbort(std::function<void()> abort);
  // As if the worker had said Stop.
  void Stop(int exit_code, const std::string& why);

  void SendSteps(const std::vector<StepRecord>& steps) override;
  void SendReady(const GroupReady& ready) override;
  void SendVote(const Vote& vote) override;
  void SendEvaluation(const Evaluation& evaluation) override;
  void SendSummary(const Summary& summary) override;
  void SendCheckpoint(const CheckpointOutcome& outcome) override;
  Directive Next(int64_t patience_us) override;
  void ThrowIfStopped() override;

  // Best effort: the worker may be gone.
  void SendFailure(const Failure& failure);
  // Waits until everything sent has reached the worker, and closes the stream.
  void Finish();
  // Whether the rank has been told to end; the reason.
  std::optional<Stopped> stopped();

  // Keys of one scope ("g3", "f1"). Calls end with CommError-like std::runtime_error when the rank
  // has to stop.
  std::shared_ptr<collective::KeyValueClient> Keys(const std::string& scope);

 private:
  struct Wire;  // Everything with gRPC types.
  class ScopedKeys;

  void ReadLoop();
  void WriteLoop();
  void OverdueLoop();
  void Receive(Directive directive);
  void Send(v1::AttachRequest request);

  std::shared_ptr<Wire> wire_;
  const std::function<void(int)> overdue_;
  std::thread reader_, writer_, overdue_watcher_;

  Mutex mu_;
  CondVar changed_;
  std::deque<Directive> inbox_ GUARDED_BY(mu_);
  std::optional<RankStart> start_ GUARDED_BY(mu_);
  std::optional<Stopped> stopped_ GUARDED_BY(mu_);
  bool finishing_ GUARDED_BY(mu_) = false;
  bool closed_ GUARDED_BY(mu_) = false;
  bool destroyed_ GUARDED_BY(mu_) = false;

  // Held while the hook runs, so that SetAbort(nullptr) returns only when it does not. Taken before
  // mu_.
  Mutex abort_mu_;
  std::function<void()> abort_ GUARDED_BY(abort_mu_);
};

}  // namespace fedshard::trainer
