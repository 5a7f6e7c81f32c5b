#include "coordinator/core/placement.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/core/describe.h"

namespace fedshard::core {
namespace {

struct Candidate {
  const NodeSlots* node = nullptr;
  std::vector<std::string> path;  // Of the topology label.
  size_t next = 0;                // First of node->free_slots not taken yet.
  bool used = false;              // By an earlier group of this job.

  int64_t free() const { return static_cast<int64_t>(node->free_slots.size() - next); }
  int64_t units(int64_t size) const { return free() / size; }
};

// What one group takes from one candidate.
struct Take {
  Candidate* from = nullptr;
  int64_t units = 0;
};

// A topology unit chosen for one group.
struct Choice {
  std::vector<Take> takes;
  int64_t used_nodes = 0;  // How many of them hold other groups of the job.
  int64_t left_over = 0;   // Units that stay free in the topology unit.
};

class Placer {
 public:
  Placer(const std::vector<NodeSlots>& nodes, const Mesh& mesh) : mesh_(mesh) {
    candidates_.reserve(nodes.size());
    for (const NodeSlots& node : nodes) {
      std::vector<std::string> path;
      if (!node.topology.empty()) path = absl::StrSplit(node.topology, '/');
      depth_ = std::max(depth_, path.size());
      candidates_.push_back({&node, std::move(path)});
    }
  }

  // The caller has checked that there is room.
  Placements Run(bool split_allowed) {
    Placements placements;
    for (int32_t group = 0; group < mesh_.groups; ++group) {
      std::vector<RankPlacement> ranks = PlaceGroup(group, split_allowed);
      placements.insert(placements.end(), ranks.begin(), ranks.end());
    }
    return placements;
  }

 private:
  std::vector<RankPlacement> PlaceGroup(int32_t group, bool split_allowed) {
    Choice choice = ChooseTopologyUnit(mesh_.replicas, mesh_.shards);
    int64_t unit = mesh_.shards;
    if (choice.takes.empty() && split_allowed) {
      choice = ChooseTopologyUnit(mesh_.group_size(), 1);
      unit = 1;
    }
    for (Take& take : choice.takes) {
      take.from->used = true;
      take.units *= unit;  // From here on in slots.
    }
    return AssignRanks(group, std::move(choice.takes));
  }

  // Shard groups that fit on one of the nodes get one to themselves; the others share what is left.
  std::vector<RankPlacement> AssignRanks(int32_t group, std::vector<Take> takes) const {
    std::vector<RankPlacement> ranks(mesh_.group_size());
    std::vector<int32_t> split;
    auto assign = [&](Take& take, int32_t replica, int32_t shard) {
      const NodeSlots& node = *take.from->node;
      const int32_t rank = mesh_.RankOf({group, replica, shard});
      ranks[replica * mesh_.shards + shard] = {rank, node.id, node.free_slots[take.from->next++]};
      --take.units;
    };
    for (int32_t replica = 0; replica < mesh_.replicas; ++replica) {
      auto whole = std::find_if(takes.begin(), takes.end(),
                                [this](const Take& take) { return take.units >= mesh_.shards; });
      if (whole == takes.end()) {
        split.push_back(replica);
        continue;
      }
      for (int32_t shard = 0; shard < mesh_.shards; ++shard) assign(*whole, replica, shard);
    }
    auto take = takes.begin();
    for (int32_t replica : split) {
      for (int32_t shard = 0; shard < mesh_.shards; ++shard) {
        while (take->units == 0) ++take;
        assign(*take, replica, shard);
      }
    }
    return ranks;
  }

  // The best of the smallest topology units with room for `count` units of `size` slots; no takes
  // when none has.
  Choice ChooseTopologyUnit(int64_t count, int64_t size) {
    // Levels from the single node over all label components to the whole cluster.
    std::map<std::string, std::vector<Candidate*>> members;
    for (Candidate& candidate : candidates_) members[candidate.node->id] = {&candidate};
    Choice best = BestOf(members, count, size);
    for (size_t level = depth_ + 1; best.takes.empty() && level-- > 0;) {
      members.clear();
      for (Candidate& candidate : candidates_) {
        const auto end = candidate.path.begin() + std::min(level, candidate.path.size());
        members[absl::StrJoin(candidate.path.begin(), end, "/")].push_back(&candidate);
      }
      best = BestOf(members, count, size);
    }
    return best;
  }

  static Choice BestOf(const std::map<std::string, std::vector<Candidate*>>& members, int64_t count,
                       int64_t size) {
    Choice best;
    for (const auto& [name, candidates] : members) {
      Choice choice = Fill(candidates, count, size);
      if (choice.takes.empty()) continue;
      if (best.takes.empty() || std::make_pair(choice.used_nodes, choice.left_over) <
                                    std::make_pair(best.used_nodes, best.left_over)) {
        best = std::move(choice);
      }
    }
    return best;
  }

  // Fresh nodes first, then large ones, so that few nodes are touched.
  static Choice Fill(std::vector<Candidate*> candidates, int64_t count, int64_t size) {
    int64_t total = 0;
    for (const Candidate* candidate : candidates) total += candidate->units(size);
    if (total < count) return {};
    std::stable_sort(candidates.begin(), candidates.end(),
                     [size](const Candidate* a, const Candidate* b) {
                       return std::make_tuple(a->used, -a->units(size)) <
                              std::make_tuple(b->used, -b->units(size));
                     });
    Choice choice;
    choice.left_over = total - count;
    for (Candidate* candidate : candidates) {
      const int64_t units = std::min(count, candidate->units(size));
      if (units == 0) continue;
      choice.takes.push_back({candidate, units});
      choice.used_nodes += candidate->used ? 1 : 0;
      count -= units;
      if (count == 0) break;
    }
    return choice;
  }

  const Mesh mesh_;
  std::vector<Candidate> candidates_;
  size_t depth_ = 0;
};

struct SlotCounts {
  int64_t slots = 0;
  int64_t free = 0;
  int64_t whole = 0;       // Shard groups that the nodes hold whole when all slots are free.
  int64_t whole_free = 0;  // Now.
};

SlotCounts Count(const std::vector<NodeSlots>& nodes, const Mesh& mesh) {
  SlotCounts counts;
  for (const NodeSlots& node : nodes) {
    const int64_t free = static_cast<int64_t>(node.free_slots.size());
    counts.slots += node.slots;
    counts.free += free;
    counts.whole += node.slots / mesh.shards;
    counts.whole_free += free / mesh.shards;
  }
  return counts;
}

}  // namespace

std::optional<PlacementRefusal> CheckFit(const std::vector<NodeSlots>& nodes, const Mesh& mesh) {
  const SlotCounts counts = Count(nodes, mesh);
  const int64_t wanted = mesh.world_size();
  const int64_t shard_groups = int64_t{mesh.groups} * mesh.replicas;
  const std::string needs = absl::StrCat("needs ", CountOf(wanted, "slot"));
  const std::string free =
      absl::StrCat(counts.free, " of ", counts.slots, counts.free == 1 ? " is" : " are", " free");
  if (counts.slots < wanted) {
    return PlacementRefusal{
        RefusalReason::kNeverFits,
        absl::StrCat(needs, ", the cluster has ", counts.slots, " on ",
                     CountOf(static_cast<int64_t>(nodes.size()), "active node"))};
  }
  if (counts.free < wanted) {
    return PlacementRefusal{RefusalReason::kNotNow, absl::StrCat(needs, ", ", free)};
  }
  if (counts.whole >= shard_groups && counts.whole_free < shard_groups) {
    return PlacementRefusal{
        RefusalReason::kNotNow,
        absl::StrCat("needs ", mesh.shards, " free slots on one node for each of ",
                     CountOf(shard_groups, "shard group"), ", there is room for ",
                     counts.whole_free, " (", free, ")")};
  }
  return std::nullopt;
}

std::variant<Placements, PlacementRefusal> Place(const std::vector<NodeSlots>& nodes,
                                                 const Mesh& mesh) {
  if (std::optional<PlacementRefusal> refusal = CheckFit(nodes, mesh)) return *refusal;
  const bool split_allowed = Count(nodes, mesh).whole < int64_t{mesh.groups} * mesh.replicas;
  return Placer(nodes, mesh).Run(split_allowed);
}

}  // namespace fedshard::core
