#include "coordinator/service/node_sessions.h"

#include "absl/strings/str_cat.h"
#include "coordinator/service/errors.h"

namespace fedshard::service {
namespace {

absl::Status Stale(absl::string_view message) {
  return WithReason(absl::AbortedError(message), kStaleIncarnation);
}

}  // namespace

absl::Status NodeSessions::Prepare(const core::NodeId& node, const std::string& incarnation) {
  const auto it = sessions_.find({node, incarnation});
  if (it != sessions_.end()) {
    if (!it->second.dropped) return absl::OkStatus();
    return Stale(absl::StrCat("the session of ", node,
                              " was dropped with directives unread; start with a new incarnation"));
  }
  if (sessions_.size() >= options_.max_sessions) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(sessions_.size(), " nodes are registered")),
        kQueueFull);
  }
  sessions_.try_emplace({node, incarnation});
  return absl::OkStatus();
}

void NodeSessions::Attach(const NodeRegistration& registration,
                          std::shared_ptr<NodeStream> stream) {
  const SessionId id{registration.node.node, registration.node.incarnation};
  for (auto it = sessions_.lower_bound({id.first, ""});
       it != sessions_.end() && it->first.first == id.first;) {
    if (it->first.second == id.second) {
      ++it;
      continue;
    }
    CloseStream(it->second,
                Stale(absl::StrCat("a newer incarnation of ", id.first, " has registered")));
    it = sessions_.erase(it);
  }

  Session& session = sessions_.at(id);
  CloseStream(session, absl::CancelledError("the worker opened another stream"));
  session.attached_once = true;
  session.stream = std::move(stream);
  streams_[session.stream.get()] = id;
  if (registration.coordinator_incarnation == options_.coordinator_incarnation) {
    Acknowledged(session, registration.last_directive);
  }
  session.stream->Send({0, Registered{options_.coordinator_incarnation,
                                      options_.heartbeat_interval_ms, session.last_report}});
  for (const NodeMessage& message : session.outbox) session.stream->Send(message);
}

void NodeSessions::Discard(const core::NodeId& node, const std::string& incarnation) {
  const auto it = sessions_.find({node, incarnation});
  if (it != sessions_.end() && !it->second.attached_once) sessions_.erase(it);
}

void NodeSessions::Send(const core::NodeId& node, const std::string& incarnation,
                        NodeDirective directive) {
  const auto it = sessions_.find({node, incarnation});
  if (it == sessions_.end() || it->second.dropped) return;
  Session& session = it->second;
  if (session.outbox.size() >= options_.outbox_messages) {
    session.dropped = true;
    session.outbox.clear();
    CloseStream(session, Stale(absl::StrCat(node, " left ", options_.outbox_messages,
                                            " directives unacknowledged")));
    return;
  }
  session.outbox.push_back({session.next_sequence++, std::move(directive)});
  if (session.stream) session.stream->Send(session.outbox.back());
}

void NodeSessions::Heartbeat(const NodeStream* stream, uint64_t last_directive) {
  Session& session = sessions_.at(OwnerOf(stream));
  Acknowledged(session, last_directive);
  session.stream->Send({0, Acknowledge{session.last_report}});
}

NodeSessions::Admission NodeSessions::Admit(const NodeStream* stream, uint64_t sequence) {
  Session& session = sessions_.at(OwnerOf(stream));
  if (sequence == session.last_report + 1) {
    session.last_report = sequence;
    return Admission::kNew;
  }
  if (sequence != 0 && sequence <= session.last_report) return Admission::kDuplicate;
  CloseStream(session, WithReason(absl::InvalidArgumentError(absl::StrCat(
                                      "sequence: report ", sequence, " does not follow report ",
                                      session.last_report)),
                                  kInvalidField));
  return Admission::kRefused;
}

bool NodeSessions::Detach(const NodeStream* stream) {
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return false;
  sessions_.at(it->second).stream.reset();
  streams_.erase(it);
  return true;
}

void NodeSessions::CloseAll(const absl::Status& status) {
  for (auto& [id, session] : sessions_) CloseStream(session, status);
}

void NodeSessions::CloseStream(Session& session, const absl::Status& status) {
  if (!session.stream) return;
  session.stream->Close(status);
  streams_.erase(session.stream.get());
  session.stream.reset();
}

void NodeSessions::Acknowledged(Session& session, uint64_t last_directive) {
  while (!session.outbox.empty() && session.outbox.front().sequence <= last_directive) {
    session.outbox.pop_front();
  }
}

}  // namespace fedshard::service
