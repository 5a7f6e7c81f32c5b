// The ranks that this worker runs and how to reach them: tokens, slots, directives waiting for a
// trainer, and what it said last. Thread-safe; owned by the daemon.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "fedshard/v1/trainer_service.pb.h"
#include "worker/supervisor/supervisor.h"

namespace fedshard::daemon {

using supervisor::TrainerId;

// Directives on their way to one trainer. Closed when its stream or process is gone: directives are
// then dropped, because a trainer that has closed its stream is about to exit by itself (and one
// that does not is found silent by the supervisor).
class Mailbox {
 public:
  static constexpr size_t kMaxQueued = 1024;

  // False when full: a trainer that does not read is broken, and is reported by the caller.
  bool Push(v1::AttachResponse directive);
  // Waits for the next one; nothing when closed.
  std::optional<v1::AttachResponse> Pop();
  void Close();

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<v1::AttachResponse> queue_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;
};

struct RankSession {
  TrainerId id;
  int32_t slot = 0;
  std::string token;
  std::shared_ptr<Mailbox> mailbox;
  bool attached = false;
  // What the trainer said of its own failure.
  std::optional<v1::RankFailure> failure;
};

class RankSessions {
 public:
  // Takes the slot; it and the id must be free. `start` is the first directive that the trainer
  // gets.
  void Add(const TrainerId& id, int32_t slot, const std::string& token, const v1::Start& start);
  // By token, once: a second trainer with the same token is refused.
  std::optional<RankSession> Attach(const std::string& token);
  // Whose token it is.
  std::optional<TrainerId> Find(const std::string& token) const;
  void SetFailure(const TrainerId& id, const v1::RankFailure& failure);
  // Frees the slot and closes the mailbox; the session as it was.
  std::optional<RankSession> Remove(const TrainerId& id);
  // Of one job and generation.
  std::vector<RankSession> Of(const std::string& job, uint64_t generation) const;
  bool HasJob(const std::string& job, const std::set<int32_t>& ranks) const;
  bool SlotTaken(int32_t slot) const;
  bool Has(const TrainerId& id) const;

 private:
  mutable Mutex mu_;
  std::map<TrainerId, RankSession> sessions_ GUARDED_BY(mu_);
};

}  // namespace fedshard::daemon
