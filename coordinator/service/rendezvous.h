// The rendezvous keys of running jobs: what a c10d::Store keeps, per (job, scope), in memory. A
// scope lives from the directive that starts its ranks to the end of their generation, so nothing
// of a dead generation is ever seen. Owned by the service; used on the loop thread only. Callbacks
// run inside the call that fulfils them and must not call back into the object.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/types.h"

namespace fedshard::service {

struct RendezvousLimits {
  size_t key_bytes = 1024;
  size_t value_bytes = 1 << 20;
  size_t keys_per_scope = 100'000;
  size_t bytes_per_scope = 256 << 20;
  size_t waiters_per_scope = 10'000;
  size_t keys_per_get = 10'000;
  // What one answer may hold; an RPC message has to carry it.
  size_t answer_bytes = 3 << 20;
};

class Rendezvous {
 public:
  // The values in the order of the keys; ABORTED when the scope went away, DEADLINE_EXCEEDED naming
  // a missing key.
  using Callback = std::function<void(absl::StatusOr<std::vector<std::string>>)>;

  explicit Rendezvous(RendezvousLimits limits) : limits_(limits) {}

  // Does nothing when the scope is open already.
  void OpenScope(const core::JobId& job, const std::string& scope);
  // Forgets its keys; who waits gets ABORTED.
  void DropScope(const core::JobId& job, const std::string& scope);

  // Overwrites. ABORTED (SCOPE_GONE): not open. INVALID_ARGUMENT: key or value too large.
  // RESOURCE_EXHAUSTED: the scope is full.
  absl::Status Set(const core::JobId& job, const std::string& scope, const std::string& key,
                   std::string value);

  // Answers when all keys are there, or at `deadline_us` (steady). Returns the waiter's id, 0 when
  // already answered.
  uint64_t Get(const core::JobId& job, const std::string& scope, std::vector<std::string> keys,
               int64_t deadline_us, Callback callback);
  // The waiter is forgotten without an answer; unknown ids are ignored.
  void Forget(uint64_t waiter);

  // Answers the waiters whose deadline has passed.
  void Expire(int64_t now_us);
  std::optional<int64_t> next_deadline_us() const;

  // Everyone who waits gets `status`; all scopes are dropped.
  void Close(const absl::Status& status);

  size_t scope_count() const { return scopes_.size(); }

 private:
  using ScopeId = std::pair<core::JobId, std::string>;
  struct Waiter {
    ScopeId scope;
    std::vector<std::string> keys;
    std::set<std::string> missing;
    int64_t deadline_us = 0;
    Callback callback;
  };
  struct Scope {
    std::map<std::string, std::string> values;
    size_t bytes = 0;
    std::map<std::string, std::set<uint64_t>> waiting;  // Missing key -> waiters.
    std::set<uint64_t> waiters;
  };

  absl::Status Gone(const ScopeId& id) const;
  absl::StatusOr<std::vector<std::string>> Collect(const Scope& scope,
                                                   const std::vector<std::string>& keys) const;
  // Takes the waiter out of every index.
  Waiter Remove(uint64_t id);

  const RendezvousLimits limits_;
  std::map<ScopeId, Scope> scopes_;
  std::map<uint64_t, Waiter> waiters_;
  std::set<std::pair<int64_t, uint64_t>> deadlines_;
  uint64_t next_waiter_ = 1;
};

}  // namespace fedshard::service
