#include "coordinator/service/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "coordinator/service/errors.h"

namespace fedshard::service {

void Rendezvous::OpenScope(const core::JobId& job, const std::string& scope) {
  scopes_.try_emplace({job, scope});
}

void Rendezvous::DropScope(const core::JobId& job, const std::string& scope) {
  const auto it = scopes_.find({job, scope});
  if (it == scopes_.end()) return;
  std::vector<Callback> callbacks;
  for (const uint64_t id : std::set<uint64_t>(it->second.waiters)) {
    callbacks.push_back(Remove(id).callback);
  }
  const absl::Status gone = Gone(it->first);
  scopes_.erase(it);
  for (Callback& callback : callbacks) callback(gone);
}

absl::Status Rendezvous::Set(const core::JobId& job, const std::string& scope_name,
                             const std::string& key, std::string value) {
  if (key.empty() || key.size() > limits_.key_bytes) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "key: must have 1 to ", limits_.key_bytes, " bytes, has ", key.size())),
                      kInvalidField);
  }
  if (value.size() > limits_.value_bytes) {
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat("value: at most ", limits_.value_bytes, " bytes, has ",
                                       value.size(), " (key \"", key, "\")")),
                      kInvalidField);
  }
  const auto it = scopes_.find({job, scope_name});
  if (it == scopes_.end()) return Gone({job, scope_name});
  Scope& scope = it->second;
  const auto old = scope.values.find(key);
  const size_t old_bytes = old == scope.values.end() ? 0 : key.size() + old->second.size();
  const size_t bytes = scope.bytes - old_bytes + key.size() + value.size();
  if (bytes > limits_.bytes_per_scope ||
      (old == scope.values.end() && scope.values.size() >= limits_.keys_per_scope)) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "scope ", scope_name, " of job ", job, " is full: ", scope.values.size(),
                          " keys, ", scope.bytes, " bytes")),
                      kQueueFull);
  }
  scope.bytes = bytes;
  scope.values[key] = std::move(value);

  const auto waiting = scope.waiting.find(key);
  if (waiting == scope.waiting.end()) return absl::OkStatus();
  std::vector<std::pair<Callback, absl::StatusOr<std::vector<std::string>>>> answers;
  for (const uint64_t id : std::set<uint64_t>(waiting->second)) {
    Waiter& waiter = waiters_.at(id);
    waiter.missing.erase(key);
    if (!waiter.missing.empty()) continue;
    Waiter done = Remove(id);
    answers.emplace_back(std::move(done.callback), Collect(scope, done.keys));
  }
  scope.waiting.erase(key);
  for (auto& [callback, values] : answers) callback(std::move(values));
  return absl::OkStatus();
}

uint64_t Rendezvous::Get(const core::JobId& job, const std::string& scope_name,
                         std::vector<std::string> keys, int64_t deadline_us, Callback callback) {
  const auto it = scopes_.find({job, scope_name});
  if (it == scopes_.end()) {
    callback(Gone({job, scope_name}));
    return 0;
  }
  if (keys.empty() || keys.size() > limits_.keys_per_get) {
    callback(WithReason(
        absl::InvalidArgumentError(absl::StrCat("keys: must have 1 to ", limits_.keys_per_get,
                                                " entries, has ", keys.size())),
        kInvalidField));
    return 0;
  }
  Scope& scope = it->second;
  Waiter waiter{{job, scope_name}, std::move(keys), {}, deadline_us, std::move(callback)};
  for (const std::string& key : waiter.keys) {
    if (key.size() > limits_.key_bytes) {
      waiter.callback(WithReason(absl::InvalidArgumentError(absl::StrCat(
                                     "keys: at most ", limits_.key_bytes, " bytes each")),
                                 kInvalidField));
      return 0;
    }
    if (!scope.values.contains(key)) waiter.missing.insert(key);
  }
  if (waiter.missing.empty()) {
    waiter.callback(Collect(scope, waiter.keys));
    return 0;
  }
  if (scope.waiters.size() >= limits_.waiters_per_scope) {
    waiter.callback(WithReason(
        absl::ResourceExhaustedError(absl::StrCat("scope ", scope_name, " of job ", job, " has ",
                                                  scope.waiters.size(), " waiters already")),
        kQueueFull));
    return 0;
  }
  const uint64_t id = next_waiter_++;
  for (const std::string& key : waiter.missing) scope.waiting[key].insert(id);
  scope.waiters.insert(id);
  deadlines_.insert({deadline_us, id});
  waiters_.emplace(id, std::move(waiter));
  return id;
}

void Rendezvous::Forget(uint64_t waiter) {
  if (waiters_.contains(waiter)) Remove(waiter);
}

void Rendezvous::Expire(int64_t now_us) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_us) {
    const Waiter waiter = Remove(deadlines_.begin()->second);
    waiter.callback(absl::DeadlineExceededError(
        absl::StrCat("scope ", waiter.scope.second, " of job ", waiter.scope.first, ": key \"",
                     *waiter.missing.begin(), "\" and ", waiter.missing.size() - 1,
                     " others were not set in time")));
  }
}

std::optional<int64_t> Rendezvous::next_deadline_us() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void Rendezvous::Close(const absl::Status& status) {
  std::vector<Callback> callbacks;
  for (auto& [id, waiter] : waiters_) callbacks.push_back(std::move(waiter.callback));
  waiters_.clear();
  deadlines_.clear();
  scopes_.clear();
  for (Callback& callback : callbacks) callback(status);
}

absl::Status Rendezvous::Gone(const ScopeId& id) const {
  return WithReason(
      absl::AbortedError(absl::StrCat("scope ", id.second, " of job ", id.first, " is gone")),
      kScopeGone);
}

absl::StatusOr<std::vector<std::string>> Rendezvous::Collect(
    const Scope& scope, const std::vector<std::string>& keys) const {
  std::vector<std::string> values;
  values.reserve(keys.size());
  size_t bytes = 0;
  for (const std::string& key : keys) {
    const std::string& value = scope.values.at(key);
    bytes += value.size();
    if (bytes > limits_.answer_bytes) {
      return WithReason(absl::ResourceExhaustedError(
                            absl::StrCat("the values of these ", keys.size(), " keys exceed ",
                                         limits_.answer_bytes, " bytes; ask for fewer at a time")),
                        kQueueFull);
    }
    values.push_back(value);
  }
  return values;
}

Rendezvous::Waiter Rendezvous::Remove(uint64_t id) {
  const auto it = waiters_.find(id);
  Waiter waiter = std::move(it->second);
  waiters_.erase(it);
  deadlines_.erase({waiter.deadline_us, id});
  const auto scope = scopes_.find(waiter.scope);
  if (scope != scopes_.end()) {
    scope->second.waiters.erase(id);
    for (const std::string& key : waiter.missing) {
      const auto waiting = scope->second.waiting.find(key);
      if (waiting == scope->second.waiting.end()) continue;
      waiting->second.erase(id);
      if (waiting->second.empty()) scope->second.waiting.erase(waiting);
    }
  }
  return waiter;
}

}  // namespace fedshard::service
