#include "coordinator/service/log_streams.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/service/errors.h"
#include "coordinator/service/job_end.h"

namespace fedshard::service {

void LogStreams::Open(const core::State& state, LogRequest request,
                      std::shared_ptr<LogReader> reader, int64_t now_us) {
  const auto job = state.jobs.find(request.job);
  if (job == state.jobs.end()) {
    return reader->EndOfLogs(WithReason(
        absl::NotFoundError(absl::StrCat("there is no job ", request.job)), kJobNotFound));
  }
  for (const int32_t rank : request.ranks) {
    if (rank < 0 || rank >= job->second.spec.mesh.world_size()) {
      return reader->EndOfLogs(
          WithReason(absl::InvalidArgumentError(absl::StrCat("ranks: the job has ranks 0 to ",
                                                             job->second.spec.mesh.world_size() - 1,
                                                             ", not ", rank)),
                     kInvalidField));
    }
  }
  if (streams_.size() >= options_.max_requests) {
    return reader->EndOfLogs(WithReason(
        absl::ResourceExhaustedError(absl::StrCat(streams_.size(), " log streams are open")),
        kQueueFull));
  }
  const uint64_t id = next_id_++;
  Stream& stream = streams_[id];
  stream.request = std::move(request);
  stream.reader = std::move(reader);
  stream.open_ended = stream.request.follow && !HasEnded(job->second);
  if (!stream.open_ended) stream.deadline_us = now_us + options_.answer_deadline_us;
  for (const core::Group& group : job->second.groups) {
    for (const core::Rank& rank : group.ranks) {
      const std::vector<int32_t>& wanted = stream.request.ranks;
      if (wanted.empty() || std::count(wanted.begin(), wanted.end(), rank.placement.rank) > 0) {
        Ask(state, id, stream, rank.placement.node);
      }
    }
  }
  FinishIfDone(id);
}

void LogStreams::Leave(const LogReader* reader) {
  for (auto it = streams_.begin(); it != streams_.end();) {
    if (it->second.reader.get() != reader) {
      ++it;
      continue;
    }
    for (const auto& [node, incarnation] : it->second.waiting) {
      send_(node, incarnation, StopLogs{it->first});
    }
    it = streams_.erase(it);
  }
}

void LogStreams::RanksStarted(const core::State& state, const core::JobId& job,
                              const core::NodeId& node) {
  for (auto& [id, stream] : streams_) {
    if (stream.request.job == job && stream.open_ended) Ask(state, id, stream, node);
  }
}

void LogStreams::Lines(const core::NodeId& node, const LogLines& lines) {
  const auto it = streams_.find(lines.log_request);
  if (it == streams_.end() || !it->second.waiting.contains(node)) return;
  Stream& stream = it->second;
  if (!lines.lines.empty() && !stream.reader->Take(node, lines.lines)) {
    return Finish(it->first, WithReason(absl::ResourceExhaustedError(
                                            "the reader of the logs is too slow; lines were lost"),
                                        kQueueFull));
  }
  if (lines.done) stream.waiting.erase(node);
  FinishIfDone(lines.log_request);
}

void LogStreams::JobEnded(const core::JobId& job, int64_t now_us) {
  std::vector<uint64_t> ids;
  for (auto& [id, stream] : streams_) {
    if (stream.request.job != job || !stream.open_ended) continue;
    stream.open_ended = false;
    stream.deadline_us = now_us + options_.answer_deadline_us;
    ids.push_back(id);
  }
  for (const uint64_t id : ids) FinishIfDone(id);
}

void LogStreams::NodeGone(const core::NodeId& node) {
  std::vector<uint64_t> ids;
  for (auto& [id, stream] : streams_) {
    if (stream.waiting.erase(node) == 0) continue;
    stream.missing.insert(node);
    ids.push_back(id);
  }
  for (const uint64_t id : ids) FinishIfDone(id);
}

void LogStreams::Expire(int64_t now_us) {
  std::vector<uint64_t> ids;
  for (auto& [id, stream] : streams_) {
    if (!stream.deadline_us || *stream.deadline_us > now_us) continue;
    for (const auto& [node, incarnation] : stream.waiting) {
      stream.missing.insert(node);
      send_(node, incarnation, StopLogs{id});
    }
    stream.waiting.clear();
    ids.push_back(id);
  }
  for (const uint64_t id : ids) FinishIfDone(id);
}

std::optional<int64_t> LogStreams::next_deadline_us() const {
  std::optional<int64_t> next;
  for (const auto& [id, stream] : streams_) {
    if (stream.deadline_us && (!next || *stream.deadline_us < *next)) next = stream.deadline_us;
  }
  return next;
}

void LogStreams::CloseAll(const absl::Status& status) {
  while (!streams_.empty()) Finish(streams_.begin()->first, status);
}

void LogStreams::Ask(const core::State& state, uint64_t id, Stream& stream,
                     const core::NodeId& node) {
  if (!stream.asked.insert(node).second) return;
  const auto known = state.nodes.find(node);
  if (known == state.nodes.end() || known->second.state == core::NodeState::kLost) {
    stream.missing.insert(node);
    return;
  }
  stream.waiting[node] = known->second.incarnation;
  send_(node, known->second.incarnation,
        ReadLogs{id, stream.request.job, stream.request.ranks, stream.request.tail_lines,
                 stream.request.follow});
}

void LogStreams::FinishIfDone(uint64_t id) {
  const Stream& stream = streams_.at(id);
  if (!stream.waiting.empty() || stream.open_ended) return;
  if (stream.missing.empty()) return Finish(id, absl::OkStatus());
  Finish(id,
         absl::UnavailableError(absl::StrCat("no answer from ", absl::StrJoin(stream.missing, ", "),
                                             "; the lines of its ranks are missing")));
}

void LogStreams::Finish(uint64_t id, const absl::Status& status) {
  const auto it = streams_.find(id);
  for (const auto& [node, incarnation] : it->second.waiting) {
    send_(node, incarnation, StopLogs{id});
  }
  const std::shared_ptr<LogReader> reader = std::move(it->second.reader);
  streams_.erase(it);
  reader->EndOfLogs(status);
}

}  // namespace fedshard::service
