#include "coordinator/service/watchers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/service/errors.h"
#include "coordinator/service/job_end.h"

namespace fedshard::service {

void Watchers::Add(const View& view, const core::JobId& id, std::shared_ptr<JobWatcher> watcher) {
  const auto job = view.state.jobs.find(id);
  if (job == view.state.jobs.end()) {
    return watcher->Fail(
        WithReason(absl::NotFoundError(absl::StrCat("there is no job ", id)), kJobNotFound));
  }
  if (HasEnded(job->second)) return watcher->Show(view, job->second, true);
  if (count_ >= options_.max_watchers) {
    return watcher->Fail(WithReason(
        absl::ResourceExhaustedError(absl::StrCat(count_, " watchers are there already")),
        kQueueFull));
  }
  ++count_;
  topics_[id].watchers.push_back(watcher);
  watcher->Show(view, job->second, false);
}

void Watchers::Remove(const JobWatcher* watcher) {
  for (auto topic = topics_.begin(); topic != topics_.end();) {
    count_ -= std::erase_if(topic->second.watchers,
                            [&](const auto& one) { return one.get() == watcher; });
    topic = topic->second.watchers.empty() ? topics_.erase(topic) : std::next(topic);
  }
}

void Watchers::Changed(const core::JobId& job) {
  const auto topic = topics_.find(job);
  if (topic != topics_.end()) topic->second.changed = true;
}

void Watchers::Progressed(const core::JobId& job) {
  const auto topic = topics_.find(job);
  if (topic != topics_.end()) topic->second.progressed = true;
}

void Watchers::Flush(const View& view) {
  for (auto it = topics_.begin(); it != topics_.end();) {
    Topic& topic = it->second;
    const bool due =
        topic.changed ||
        (topic.progressed && view.now.steady_us >= topic.shown_us + options_.progress_interval_us);
    if (!due) {
      ++it;
      continue;
    }
    topic.changed = topic.progressed = false;
    topic.shown_us = view.now.steady_us;
    const core::Job& job = view.state.jobs.at(it->first);
    const bool last = HasEnded(job);
    for (const auto& watcher : topic.watchers) watcher->Show(view, job, last);
    if (last) {
      count_ -= topic.watchers.size();
      it = topics_.erase(it);
    } else {
      ++it;
    }
  }
}

std::optional<int64_t> Watchers::next_deadline_us() const {
  std::optional<int64_t> next;
  for (const auto& [job, topic] : topics_) {
    if (!topic.progressed) continue;
    const int64_t due = topic.shown_us + options_.progress_interval_us;
    if (!next || due < *next) next = due;
  }
  return next;
}

void Watchers::CloseAll(const absl::Status& status) {
  for (const auto& [job, topic] : topics_) {
    for (const auto& watcher : topic.watchers) watcher->Fail(status);
  }
  topics_.clear();
  count_ = 0;
}

}  // namespace fedshard::service
