// What the handlers of one command share: the state they change, the moment, and the effects they
// collect. Made by Core::ApplyOne for each command, lives no longer. Not thread-safe.
#pragma once

#include <string>

#include "coordinator/core/core.h"

namespace fedshard::core {

class Transition {
 public:
  Transition(const CoreOptions& core_options, State& core_state, Instant at, Effects& out)
      : options(core_options), state(core_state), now(at), effects(out) {}

  const CoreOptions& options;
  State& state;
  const Instant now;
  Effects& effects;

  // Set by whoever changes the durable state: the command is then recorded.
  bool changed = false;
  // Set when slots or jobs came or went: the queue is looked at again after the handler.
  bool look_at_queue = false;

  void JobEvent(const Job& job, const std::string& reason, const std::string& message);
  void NodeEvent(const NodeId& node, const std::string& reason, const std::string& message);
  // A report that no longer matters. Nothing changes.
  void Ignore(const JobId& job, const NodeId& node, const std::string& message);

  // Answers a user with OK, or with an error and its stable reason.
  void ReplyOk(uint64_t reply_to, const JobId& job);
  void ReplyError(uint64_t reply_to, absl::Status status, const std::string& reason);

  // `changed` of the condition moves only when it turns over or has another reason.
  void SetCondition(Job& job, const std::string& type, bool active, const std::string& reason,
                    const std::string& message);

  // One directive for each node that holds living ranks of the group, in rank order. Nothing for
  // lost nodes.
  void SendToGroup(const Job& job, const Group& group, const RoundPlan& plan);
  void SendToGroup(const Job& job, const Group& group, const RoundDecision& decision);
  void SendStop(const Job& job, const Group& group, const std::string& message);
};

// Condition types.
inline constexpr char kPlaced[] = "Placed";
inline constexpr char kReady[] = "Ready";
inline constexpr char kStopped[] = "Stopped";
inline constexpr char kCheckpointed[] = "Checkpointed";

// Rank `rank` of a placed job; it must exist.
Rank& RankOf(Job& job, int32_t rank);
bool IsFirstOfGroup(const Job& job, int32_t rank);
bool AllExited(const Job& job);

}  // namespace fedshard::core
