#include "coordinator/core/queue.h"

#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/placement.h"

namespace fedshard::core {
namespace {

// What placement may use: active nodes; free slots only where directives get through.
std::vector<NodeSlots> Inventory(const State& state) {
  std::vector<NodeSlots> nodes;
  for (const auto& [id, node] : state.nodes) {
    if (node.state != NodeState::kActive) continue;
    NodeSlots slots;
    slots.id = id;
    slots.slots = static_cast<int32_t>(node.slots.size());
    if (auto label = node.labels.find(kTopologyLabel); label != node.labels.end()) {
      slots.topology = label->second;
    }
    for (int32_t i = 0; node.connected && i < slots.slots; ++i) {
      if (node.slots[i].empty()) slots.free_slots.push_back(i);
    }
    nodes.push_back(std::move(slots));
  }
  return nodes;
}

std::string WaitsBehind(const JobId& head) { return absl::StrCat("waits behind job ", head); }

void KeepWaiting(Transition& t, Job& job, const std::string& message) {
  if (job.message == message) return;
  job.message = message;
  t.SetCondition(job, kPlaced, false, job.reason, message);
  t.JobEvent(job, job.reason, message);
}

void SendStart(Transition& t, const Job& job, const Group& group) {
  std::map<NodeId, StartRanks> starts;
  for (const Rank& rank : group.ranks) {
    StartRanks& start = starts[rank.placement.node];
    start.ranks.push_back(rank.placement);
  }
  for (auto& [node, start] : starts) {
    start.job = job.spec.id;
    start.generation = group.generation;
    start.federation_generation = job.federation_generation;
    start.spec_blob = job.spec.blob;
    t.effects.directives.push_back({node, t.state.nodes.at(node).incarnation, std::move(start)});
  }
}

void StartJob(Transition& t, Job& job, const Placements& placements) {
  const int32_t size = job.spec.mesh.group_size();
  job.federation_generation = t.state.next_generation++;
  for (int32_t f = 0; f < job.spec.mesh.groups; ++f) {
    Group group;
    group.index = f;
    group.generation = t.state.next_generation++;
    for (int32_t i = 0; i < size; ++i) {
      const RankPlacement& placement = placements[f * size + i];
      t.state.nodes.at(placement.node).slots[placement.slot] = job.spec.id;
      group.ranks.push_back({placement, RankState::kStarting});
    }
    job.groups.push_back(std::move(group));
  }
  t.state.active.insert(job.spec.id);
  job.state = JobState::kStarting;
  job.reason = "PLACED";
  job.message = absl::StrCat(CountOf(placements.size(), "rank"), " to start");
  job.start.started_us = t.now.steady_us;
  job.deadline_us = t.now.steady_us + t.options.start_deadline_us;
  t.SetCondition(job, kPlaced, true, job.reason, CountOf(placements.size(), "rank"));
  t.SetCondition(job, kReady, false, "STARTING", job.message);
  t.JobEvent(job, job.reason, job.message);
  for (const Group& group : job.groups) SendStart(t, job, group);
}

}  // namespace

std::optional<std::string> WhyItWouldWait(const State& state, const Mesh& mesh) {
  const std::vector<NodeSlots> nodes = Inventory(state);
  if (std::optional<PlacementRefusal> refusal = CheckFit(nodes, mesh)) return refusal->message;
  for (const JobId& id : state.queue) {
    const std::optional<PlacementRefusal> refusal = CheckFit(nodes, state.jobs.at(id).spec.mesh);
    if (refusal && refusal->reason == RefusalReason::kNotNow) return WaitsBehind(id);
  }
  return std::nullopt;
}

void PlaceQueued(Transition& t) {
  JobId head;
  std::vector<JobId> waiting;
  std::vector<NodeSlots> nodes = Inventory(t.state);
  for (const JobId& id : t.state.queue) {
    Job& job = t.state.jobs.at(id);
    const std::optional<PlacementRefusal> refusal = CheckFit(nodes, job.spec.mesh);
    if (!refusal && head.empty()) {
      StartJob(t, job, std::get<Placements>(Place(nodes, job.spec.mesh)));
      nodes = Inventory(t.state);
      continue;
    }
    waiting.push_back(id);
    if (!refusal) {
      KeepWaiting(t, job, WaitsBehind(head));
    } else if (refusal->reason == RefusalReason::kNeverFits || head.empty()) {
      KeepWaiting(t, job, refusal->message);
    } else {
      KeepWaiting(t, job, absl::StrCat(WaitsBehind(head), "; ", refusal->message));
    }
    if (refusal && refusal->reason == RefusalReason::kNotNow && head.empty()) head = id;
  }
  t.state.queue = std::move(waiting);
}

}  // namespace fedshard::core
