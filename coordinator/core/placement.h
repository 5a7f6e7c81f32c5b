// Where the ranks of a job go. A pure function of the inventory and the mesh: same input, same
// answer.
//
// Rules, in this order:
// 1. All ranks are placed or none.
// 2. The S ranks of a shard group share a node. They are split over nodes only where the registered
// nodes could not hold
//    the job's shard groups whole even if all slots were free; a job that merely meets a fragmented
//    cluster waits.
// 3. The shard groups of a federation group are close: inside the smallest topology unit (node,
// then the longest common
//    prefix of the label `topology`, e.g. "block/rack/host") that has room for the group now.
// 4. Groups are apart: a node that holds no other group of the job is preferred.
// 5. Ties go to the fullest fit, which keeps large holes for later jobs, then to the first name.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/mesh.h"
#include "coordinator/core/types.h"

namespace fedshard::core {

// The node label that rule 3 reads.
inline constexpr char kTopologyLabel[] = "topology";

struct NodeSlots {
  NodeId id;
  std::string topology;             // "" when the node has no such label.
  int32_t slots = 0;                // In all.
  std::vector<int32_t> free_slots;  // Ascending.
};

enum class RefusalReason { kNeverFits, kNotNow };
struct PlacementRefusal {
  RefusalReason reason = RefusalReason::kNotNow;
  std::string message;  // For people, with the numbers.
};

// In rank order.
using Placements = std::vector<RankPlacement>;

// Why a job of this mesh cannot be placed, or nothing when it can. Looks at sums alone, so it is
// cheap. The mesh's sizes are positive.
std::optional<PlacementRefusal> CheckFit(const std::vector<NodeSlots>& nodes, const Mesh& mesh);

// `nodes` in ascending order of id.
std::variant<Placements, PlacementRefusal> Place(const std::vector<NodeSlots>& nodes,
                                                 const Mesh& mesh);

}  // namespace fedshard::core
