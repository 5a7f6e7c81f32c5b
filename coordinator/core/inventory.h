// Nodes: registration, heartbeats, loss and return.
#pragma once

#include "coordinator/core/transition.h"

namespace fedshard::core {

// A new incarnation of a known node means that its worker restarted: what ran there is gone and its
// slots are free. The same incarnation is a reconnect and keeps everything. A former incarnation is
// refused.
void HandleRegisterNode(Transition& t, const RegisterNode& command);

// A sign of life. A lost node that shows one is active again, but what still runs there is told to
// stop, and its slots are free only when those ranks are reaped.
void HandleNodeHeartbeat(Transition& t, const NodeHeartbeat& command);

void HandleNodeDisconnected(Transition& t, const NodeDisconnected& command);

// Its heartbeats are overdue: its ranks count as exited and their jobs fail.
void HandleNodeLost(Transition& t, const NodeLost& command);

// Nodes whose heartbeats are overdue, in order of id.
std::vector<NodeLost> OverdueNodes(const CoreOptions& options, const State& state, Instant now);

// The active node with this incarnation, or nullptr. A lost node counts: its reports are still
// true.
Node* FindNode(State& state, const NodeId& id, const std::string& incarnation);

// The rank's process is reaped: its slot is free, if it still held one.
void ReleaseSlot(Transition& t, const JobId& job, const RankPlacement& placement);

}  // namespace fedshard::core
