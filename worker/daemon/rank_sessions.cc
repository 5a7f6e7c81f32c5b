#include "worker/daemon/rank_sessions.h"

#include <utility>

namespace fedshard::daemon {

bool Mailbox::Push(v1::AttachResponse directive) {
  MutexLock lock(mu_);
  if (closed_) return true;
  if (queue_.size() >= kMaxQueued) return false;
  queue_.push_back(std::move(directive));
  changed_.NotifyAll();
  return true;
}

std::optional<v1::AttachResponse> Mailbox::Pop() {
  MutexLock lock(mu_);
  while (queue_.empty() && !closed_) changed_.WaitFor(mu_, std::chrono::seconds(1));
  if (queue_.empty()) return std::nullopt;
  v1::AttachResponse next = std::move(queue_.front());
  queue_.pop_front();
  return next;
}

void Mailbox::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  changed_.NotifyAll();
}

void RankSessions::Add(const TrainerId& id, int32_t slot, const std::string& token,
                       const v1::Start& start) {
  MutexLock lock(mu_);
  RankSession session{id, slot, token, std::make_shared<Mailbox>(), false, std::nullopt};
  v1::AttachResponse first;
  *first.mutable_start() = start;
  session.mailbox->Push(std::move(first));
  sessions_.emplace(id, std::move(session));
}

std::optional<RankSession> RankSessions::Attach(const std::string& token) {
  MutexLock lock(mu_);
  for (auto& [id, session] : sessions_) {
    if (session.token == token && !session.attached) {
      session.attached = true;
      return session;
    }
  }
  return std::nullopt;
}

std::optional<TrainerId> RankSessions::Find(const std::string& token) const {
  MutexLock lock(mu_);
  for (const auto& [id, session] : sessions_) {
    if (session.token == token) return id;
  }
  return std::nullopt;
}

void RankSessions::SetFailure(const TrainerId& id, const v1::RankFailure& failure) {
  MutexLock lock(mu_);
  if (const auto found = sessions_.find(id); found != sessions_.end()) {
    found->second.failure = failure;
  }
}

std::optional<RankSession> RankSessions::Remove(const TrainerId& id) {
  MutexLock lock(mu_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return std::nullopt;
  RankSession session = std::move(found->second);
  sessions_.erase(found);
  session.mailbox->Close();
  return session;
}

std::vector<RankSession> RankSessions::Of(const std::string& job, uint64_t generation) const {
  MutexLock lock(mu_);
  std::vector<RankSession> result;
  for (const auto& [id, session] : sessions_) {
    if (id.job == job && id.generation == generation) result.push_back(session);
  }
  return result;
}

bool RankSessions::HasJob(const std::string& job, const std::set<int32_t>& ranks) const {
  MutexLock lock(mu_);
  for (const auto& [id, session] : sessions_) {
    if (id.job == job && (ranks.empty() || ranks.count(id.rank) > 0)) return true;
  }
  return false;
}

bool RankSessions::Has(const TrainerId& id) const {
  MutexLock lock(mu_);
  return sessions_.count(id) > 0;
}

bool RankSessions::SlotTaken(int32_t slot) const {
  MutexLock lock(mu_);
  for (const auto& [id, session] : sessions_) {
    if (session.slot == slot) return true;
  }
  return false;
}

}  // namespace fedshard::daemon
