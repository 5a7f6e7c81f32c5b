// Reliable sessions with the nodes' workers over streams that may break. A session belongs to one
// incarnation of a worker; it numbers directives, keeps those that the worker has not acknowledged
// and sends them again on the next stream, and drops reports that it has seen. Directives to a node
// without a stream wait in its outbox. Owned by the service; used on the loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/service/node_messages.h"

namespace fedshard::service {

struct NodeSessionOptions {
  std::string coordinator_incarnation;
  int32_t heartbeat_interval_ms = 2000;
  size_t outbox_messages = 10'000;  // Per session; one more drops the session.
  size_t max_sessions = 10'000;
};

class NodeSessions {
 public:
  explicit NodeSessions(NodeSessionOptions options) : options_(std::move(options)) {}

  // Before the core hears of the registration: makes sure that directives to this incarnation have
  // a session. ABORTED (STALE_INCARNATION): its session was dropped, the worker must start anew.
  // RESOURCE_EXHAUSTED: too many.
  absl::Status Prepare(const core::NodeId& node, const std::string& incarnation);
  // The core took the registration: older incarnations' streams are closed with ABORTED
  // (STALE_INCARNATION) and forgotten, and the stream gets Registered and all that its worker has
  // not processed.
  void Attach(const NodeRegistration& registration, std::shared_ptr<NodeStream> stream);
  // The core did not: forgets the session that Prepare made, if it was never attached.
  void Discard(const core::NodeId& node, const std::string& incarnation);

  // Queues the directive, and sends it if there is a stream. One for an incarnation without a
  // session is dropped: its processes are gone with it.
  void Send(const core::NodeId& node, const std::string& incarnation, NodeDirective directive);

  // True when the stream is its session's current one.
  bool IsCurrent(const NodeStream* stream) const { return streams_.contains(stream); }
  // The session that the stream serves; call only when IsCurrent.
  const std::pair<core::NodeId, std::string>& OwnerOf(const NodeStream* stream) const {
    return streams_.at(stream);
  }

  // Drops what the worker has processed, and acknowledges its reports.
  void Heartbeat(const NodeStream* stream, uint64_t last_directive);
  enum class Admission { kNew, kDuplicate, kRefused };
  // Whether the report is the next one. A gap is refused, and the stream closed with
  // INVALID_ARGUMENT.
  Admission Admit(const NodeStream* stream, uint64_t sequence);
  // The stream ended. True when it was its session's current one.
  bool Detach(const NodeStream* stream);

  // Closes every stream.
  void CloseAll(const absl::Status& status);

 private:
  using SessionId = std::pair<core::NodeId, std::string>;
  struct Session {
    std::shared_ptr<NodeStream> stream;
    std::deque<NodeMessage> outbox;
    uint64_t next_sequence = 1;
    uint64_t last_report = 0;
    bool attached_once = false;
    bool dropped = false;  // Kept as a marker, so that the incarnation cannot come back with a hole
                           // in its directives.
  };

  void CloseStream(Session& session, const absl::Status& status);
  void Acknowledged(Session& session, uint64_t last_directive);

  const NodeSessionOptions options_;
  std::map<SessionId, Session> sessions_;
  std::map<const NodeStream*, SessionId> streams_;
};

}  // namespace fedshard::service
