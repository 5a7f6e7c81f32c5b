#include "coordinator/core/transition.h"

#include <utility>
#include <vector>

namespace fedshard::core {
namespace {

// Nodes with living ranks of the group, in the order of their first rank.
std::vector<NodeId> LivingNodes(const Group& group) {
  std::vector<NodeId> nodes;
  std::set<NodeId> seen;
  for (const Rank& rank : group.ranks) {
    if (rank.state == RankState::kExited) continue;
    if (seen.insert(rank.placement.node).second) nodes.push_back(rank.placement.node);
  }
  return nodes;
}

template <class Body>
void SendToNodes(const Transition& t, const Group& group, const Body& body) {
  for (const NodeId& node : LivingNodes(group)) {
    t.effects.directives.push_back({node, t.state.nodes.at(node).incarnation, body});
  }
}

}  // namespace

void Transition::JobEvent(const Job& job, const std::string& reason, const std::string& message) {
  effects.events.push_back({job.spec.id, "", reason, message});
}

void Transition::NodeEvent(const NodeId& node, const std::string& reason,
                           const std::string& message) {
  effects.events.push_back({"", node, reason, message});
}

void Transition::Ignore(const JobId& job, const NodeId& node, const std::string& message) {
  effects.events.push_back({job, node, "IGNORED", message});
}

void Transition::ReplyOk(uint64_t reply_to, const JobId& job) {
  effects.replies.push_back({reply_to, absl::OkStatus(), "", "", job});
}

void Transition::ReplyError(uint64_t reply_to, absl::Status status, const std::string& reason) {
  effects.replies.push_back({reply_to, std::move(status), reason, "", ""});
}

void Transition::SetCondition(Job& job, const std::string& type, bool active,
                              const std::string& reason, const std::string& message) {
  const bool is_new = job.conditions.count(type) == 0;
  Condition& condition = job.conditions[type];
  if (is_new || condition.active != active || condition.reason != reason) condition.changed = now;
  condition.active = active;
  condition.reason = reason;
  condition.message = message;
  changed = true;
}

void Transition::SendToGroup(const Job& job, const Group& group, const RoundPlan& plan) {
  SendToNodes(*this, group, DirectRanks{job.spec.id, group.generation, plan});
}

void Transition::SendToGroup(const Job& job, const Group& group, const RoundDecision& decision) {
  SendToNodes(*this, group, DirectRanks{job.spec.id, group.generation, decision});
}

void Transition::SendStop(const Job& job, const Group& group, const std::string& message) {
  SendToNodes(*this, group,
              StopRanks{job.spec.id, group.generation, options.stop_grace_ms, message});
}

Rank& RankOf(Job& job, int32_t rank) {
  const int32_t size = job.spec.mesh.group_size();
  return job.groups.at(rank / size).ranks.at(rank % size);
}

bool IsFirstOfGroup(const Job& job, int32_t rank) { return rank % job.spec.mesh.group_size() == 0; }

bool AllExited(const Job& job) {
  for (const Group& group : job.groups) {
    for (const Rank& rank : group.ranks) {
      if (rank.state != RankState::kExited) return false;
    }
  }
  return true;
}

}  // namespace fedshard::core
