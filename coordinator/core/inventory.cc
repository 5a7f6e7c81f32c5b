#include "coordinator/core/inventory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/stopping.h"

namespace fedshard::core {
namespace {

void MarkExited(Job& job, const NodeId& node) {
  for (Group& group : job.groups) {
    bool all = true;
    for (Rank& rank : group.ranks) {
      if (rank.placement.node == node) rank.state = RankState::kExited;
      all = all && rank.state == RankState::kExited;
    }
    if (all) group.state = GroupState::kStopped;
  }
}

// All ranks on the node count as exited. Their jobs fail with "<what>; ranks ... ran there".
void LoseRanks(Transition& t, const NodeId& node, const std::string& what) {
  const std::vector<JobId> active(t.state.active.begin(), t.state.active.end());
  for (const JobId& id : active) {
    Job& job = t.state.jobs.at(id);
    const std::vector<int32_t> ranks = LivingRanksOn(job, node);
    if (ranks.empty()) continue;
    MarkExited(job, node);
    FailJob(t, job, "NODE_LOST", absl::StrCat(what, "; it ran ", FormatRanks(ranks)));
    CheckAllExited(t, job);
  }
}

// What the node may still run after it was given up: only the jobs that hold its slots can.
void StopForgottenRanks(Transition& t, const Node& node) {
  std::set<std::pair<JobId, Generation>> stops;
  for (const JobId& id : node.slots) {
    if (id.empty()) continue;
    for (const Group& group : t.state.jobs.at(id).groups) {
      for (const Rank& rank : group.ranks) {
        if (rank.placement.node == node.id && node.slots[rank.placement.slot] == id) {
          stops.insert({id, group.generation});
        }
      }
    }
  }
  for (const auto& [job, generation] : stops) {
    t.effects.directives.push_back(
        {node.id, node.incarnation,
         StopRanks{job, generation, t.options.stop_grace_ms, "the node was given up as lost"}});
  }
}

void Return(Transition& t, Node& node) {
  node.state = NodeState::kActive;
  node.connected = true;
  t.changed = t.look_at_queue = true;
  t.NodeEvent(node.id, "NODE_RETURNED", "it was lost and is active again");
  StopForgottenRanks(t, node);
}

void Describe(Node& node, const RegisterNode& command) {
  node.labels = command.labels;
  node.data_address = command.data_address;
  node.version = command.version;
}

void Reconnect(Transition& t, Node& node, const RegisterNode& command) {
  node.last_heartbeat_us = t.now.steady_us;
  Describe(node, command);
  t.changed = t.look_at_queue = true;
  if (node.state == NodeState::kLost) return Return(t, node);
  node.connected = true;
  t.NodeEvent(node.id, "NODE_RECONNECTED", "same incarnation");
}

void Restart(Transition& t, Node& node, const RegisterNode& command) {
  if (!node.incarnation.empty()) {
    node.former_incarnations.push_back(node.incarnation);
    if (node.former_incarnations.size() > t.options.max_former_incarnations) {
      node.former_incarnations.pop_front();
    }
  }
  const bool restarted = !node.incarnation.empty();
  node.id = command.node;
  node.state = NodeState::kActive;
  node.connected = true;
  node.incarnation = command.incarnation;
  node.registered = t.now;
  node.last_heartbeat_us = t.now.steady_us;
  node.slots.assign(command.slots, "");
  Describe(node, command);
  t.changed = t.look_at_queue = true;
  t.NodeEvent(node.id, restarted ? "NODE_RESTARTED" : "NODE_REGISTERED",
              CountOf(command.slots, "slot"));
  if (restarted) LoseRanks(t, node.id, absl::StrCat("the worker of ", node.id, " restarted"));
}

}  // namespace

Node* FindNode(State& state, const NodeId& id, const std::string& incarnation) {
  auto it = state.nodes.find(id);
  return it == state.nodes.end() || it->second.incarnation != incarnation ? nullptr : &it->second;
}

void HandleRegisterNode(Transition& t, const RegisterNode& command) {
  if (command.node.empty() || command.incarnation.empty() || command.slots < 1) {
    return t.Ignore("", command.node, "a registration needs a node, an incarnation and slots");
  }
  if (Node* node = FindNode(t.state, command.node, command.incarnation)) {
    return Reconnect(t, *node, command);
  }
  auto it = t.state.nodes.find(command.node);
  if (it != t.state.nodes.end()) {
    const auto& former = it->second.former_incarnations;
    if (std::find(former.begin(), former.end(), command.incarnation) != former.end()) {
      return t.Ignore("", command.node, "a newer incarnation is registered");
    }
  }
  Restart(t, t.state.nodes[command.node], command);
}

void HandleNodeHeartbeat(Transition& t, const NodeHeartbeat& command) {
  Node* node = FindNode(t.state, command.node, command.incarnation);
  if (node == nullptr) return t.Ignore("", command.node, "heartbeat of an unknown incarnation");
  node->last_heartbeat_us = t.now.steady_us;
  if (node->state == NodeState::kLost) {
    Return(t, *node);
  } else if (!node->connected) {
    node->connected = true;
    t.changed = t.look_at_queue = true;
  }
}

void HandleNodeDisconnected(Transition& t, const NodeDisconnected& command) {
  Node* node = FindNode(t.state, command.node, command.incarnation);
  if (node == nullptr || !node->connected) return;
  node->connected = false;
  t.changed = t.look_at_queue = true;
  t.NodeEvent(node->id, "NODE_DISCONNECTED", "its stream ended");
}

void HandleNodeLost(Transition& t, const NodeLost& command) {
  Node* node = FindNode(t.state, command.node, command.incarnation);
  if (node == nullptr || node->state == NodeState::kLost) return;
  node->state = NodeState::kLost;
  t.changed = t.look_at_queue = true;
  const std::string what = absl::StrCat(node->id, " is lost: no heartbeat for ",
                                        t.options.node_lost_after_us / 1e6, " s");
  t.NodeEvent(node->id, "NODE_LOST", what);
  LoseRanks(t, node->id, what);
}

std::vector<NodeLost> OverdueNodes(const CoreOptions& options, const State& state, Instant now) {
  std::vector<NodeLost> overdue;
  for (const auto& [id, node] : state.nodes) {
    if (node.state == NodeState::kActive &&
        now.steady_us >= node.last_heartbeat_us + options.node_lost_after_us) {
      overdue.push_back({id, node.incarnation});
    }
  }
  return overdue;
}

void ReleaseSlot(Transition& t, const JobId& job, const RankPlacement& placement) {
  std::vector<JobId>& slots = t.state.nodes.at(placement.node).slots;
  // After a restart of the worker the slot may be gone, or be another job's.
  if (placement.slot >= static_cast<int32_t>(slots.size()) || slots[placement.slot] != job) return;
  slots[placement.slot].clear();
  t.changed = t.look_at_queue = true;
}

}  // namespace fedshard::core
