// Relays the trainers' log lines from the nodes to the readers that asked for them. One request
// fans out to the nodes that run the job's ranks; each answers with lines and says when it has no
// more. Owned by the service; used on the loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/state.h"
#include "coordinator/service/node_messages.h"

namespace fedshard::service {

// Who reads, implemented by the RPC adapter. Called on the loop thread; never blocks.
class LogReader {
 public:
  virtual ~LogReader() = default;
  // False when the reader is too far behind to take more.
  virtual bool Take(const core::NodeId& node, const std::vector<LogLine>& lines) = 0;
  // Nothing follows.
  virtual void EndOfLogs(const absl::Status& status) = 0;
};

struct LogRequest {
  core::JobId job;
  std::vector<int32_t> ranks;  // Empty = all.
  int32_t tail_lines = 100;
  bool follow = false;
};

struct LogStreamOptions {
  // A node that has not finished by then is named in the final status. When following: counted from
  // the job's end.
  int64_t answer_deadline_us = 10'000'000;
  size_t max_requests = 256;
};

class LogStreams {
 public:
  using SendDirective =
      std::function<void(const core::NodeId&, const std::string& incarnation, NodeDirective)>;

  LogStreams(LogStreamOptions options, SendDirective send)
      : options_(options), send_(std::move(send)) {}

  // Asks the nodes of the job's ranks. A job without ranks ends at once, or when following waits
  // for its start. NOT_FOUND and RESOURCE_EXHAUSTED go to the reader.
  void Open(const core::State& state, LogRequest request, std::shared_ptr<LogReader> reader,
            int64_t now_us);
  // The reader left: the nodes are told to stop.
  void Leave(const LogReader* reader);

  // Ranks were just started: followers of the job begin to read there.
  void RanksStarted(const core::State& state, const core::JobId& job, const core::NodeId& node);
  void Lines(const core::NodeId& node, const LogLines& lines);
  // The job has ended and stopped: followers get what is left.
  void JobEnded(const core::JobId& job, int64_t now_us);
  // The node's processes are gone; it will not answer any more.
  void NodeGone(const core::NodeId& node);

  void Expire(int64_t now_us);
  std::optional<int64_t> next_deadline_us() const;
  void CloseAll(const absl::Status& status);

 private:
  struct Stream {
    LogRequest request;
    std::shared_ptr<LogReader> reader;
    std::map<core::NodeId, std::string> waiting;  // Nodes that may send more -> incarnation.
    std::set<core::NodeId> asked;
    std::set<core::NodeId> missing;  // Asked in vain.
    std::optional<int64_t> deadline_us;
    bool open_ended = false;  // Follows a job that has not ended.
  };

  void Ask(const core::State& state, uint64_t id, Stream& stream, const core::NodeId& node);
  // Ends the stream when no node can add to it.
  void FinishIfDone(uint64_t id);
  void Finish(uint64_t id, const absl::Status& status);

  const LogStreamOptions options_;
  const SendDirective send_;
  std::map<uint64_t, Stream> streams_;
  uint64_t next_id_ = 1;
};

}  // namespace fedshard::service
