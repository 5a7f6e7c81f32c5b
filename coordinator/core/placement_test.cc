// Placement puts all ranks or none; keeps shard groups on one node, the replicas of a group close
// by topology, groups apart; is the same for the same input; and tells "never" from "not now".
#include "coordinator/core/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fedshard::core {
namespace {

// Free slots as a string of '.' (free) and 'x' (taken).
NodeSlots Node(const std::string& id, const std::string& slots, const std::string& topology = "") {
  NodeSlots node;
  node.id = id;
  node.topology = topology;
  node.slots = static_cast<int32_t>(slots.size());
  for (int32_t i = 0; i < node.slots; ++i) {
    if (slots[i] == '.') node.free_slots.push_back(i);
  }
  return node;
}

// "n0:0 n0:1 | n1:0 n1:1": groups apart by bars; or the refusal's message.
std::string Placed(const std::vector<NodeSlots>& nodes, const Mesh& mesh) {
  const auto answer = Place(nodes, mesh);
  if (const auto* refusal = std::get_if<PlacementRefusal>(&answer)) return refusal->message;
  std::string text;
  int32_t expected_rank = 0;
  for (const RankPlacement& rank : std::get<Placements>(answer)) {
    EXPECT_EQ(rank.rank, expected_rank++);
    const bool new_group = rank.rank > 0 && rank.rank % mesh.group_size() == 0;
    absl::StrAppend(&text,
                    rank.rank == 0 ? ""
                    : new_group    ? " | "
                                   : " ",
                    rank.node, ":", rank.slot);
  }
  EXPECT_EQ(expected_rank, mesh.world_size());
  return text;
}

struct Case {
  std::string name;
  std::vector<NodeSlots> nodes;
  Mesh mesh;
  std::string expected;
};

class PlacementTable : public ::testing::TestWithParam<Case> {};

TEST_P(PlacementTable, IsAsExpected) {
  EXPECT_EQ(Placed(GetParam().nodes, GetParam().mesh), GetParam().expected);
  EXPECT_EQ(Placed(GetParam().nodes, GetParam().mesh), GetParam().expected);
}

const Case kCases[] = {
    {"one_rank", {Node("n0", ".")}, {1, 1, 1}, "n0:0"},
    {"lowest_free_slots", {Node("n0", "x.x..")}, {1, 1, 2}, "n0:1 n0:3"},
    {"no_nodes", {}, {1, 1, 1}, "needs 1 slot, the cluster has 0 on 0 active nodes"},
    {"never_fits",
     {Node("n0", "...."), Node("n1", "....")},
     {3, 1, 3},
     "needs 9 slots, the cluster has 8 on 2 active nodes"},
    {"not_now",
     {Node("n0", "x..."), Node("n1", "xxxx")},
     {1, 1, 4},
     "needs 4 slots, 3 of 8 are free"},
    {"groups_on_different_nodes",
     {Node("n0", "...."), Node("n1", "....")},
     {2, 1, 2},
     "n0:0 n0:1 | n1:0 n1:1"},
    {"groups_share_when_they_must",
     {Node("n0", "....."), Node("n1", "..")},
     {3, 1, 2},
     "n1:0 n1:1 | n0:0 n0:1 | n0:2 n0:3"},
    {"fullest_fit_first", {Node("n0", "........"), Node("n1", "..")}, {1, 1, 2}, "n1:0 n1:1"},
    {"waits_rather_than_splits",
     {Node("n0", "...x"), Node("n1", "...x")},
     {1, 1, 4},
     "needs 4 free slots on one node for each of 1 shard group, there is room for 0 (6 of 8 are "
     "free)"},
    {"splits_when_no_node_is_large_enough",
     {Node("n0", "...."), Node("n1", "....")},
     {1, 1, 6},
     "n0:0 n0:1 n0:2 n0:3 n1:0 n1:1"},
    {"splits_as_few_shard_groups_as_possible",
     {Node("n0", "....."), Node("n1", "....."), Node("n2", "..")},
     {1, 3, 4},
     "n0:0 n0:1 n0:2 n0:3 n1:0 n1:1 n1:2 n1:3 n0:4 n1:4 n2:0 n2:1"},
    {"replicas_on_one_node",
     {Node("n0", ".."), Node("n1", "....")},
     {1, 2, 2},
     "n1:0 n1:1 n1:2 n1:3"},
    {"replicas_in_one_rack",
     {Node("n0", "..", "b0/r0/h0"), Node("n1", "..", "b0/r1/h1"), Node("n2", "..", "b0/r1/h2")},
     {1, 2, 2},
     "n1:0 n1:1 n2:0 n2:1"},
    {"replicas_in_one_block",
     {Node("n0", "..", "b0/r0/h0"), Node("n1", "..", "b1/r0/h1"), Node("n2", "..", "b1/r1/h2")},
     {1, 2, 2},
     "n1:0 n1:1 n2:0 n2:1"},
    {"each_group_in_its_rack",
     {Node("n0", "..", "b0/r0/h0"), Node("n1", "..", "b0/r1/h1"), Node("n2", "..", "b0/r0/h2"),
      Node("n3", "..", "b0/r1/h3")},
     {2, 2, 2},
     "n0:0 n0:1 n2:0 n2:1 | n1:0 n1:1 n3:0 n3:1"},
    {"equal_labels_are_one_host",
     {Node("n0", ".", "h0"), Node("n1", ".", "h1"), Node("n2", ".", "h1")},
     {1, 2, 1},
     "n1:0 n2:0"},
    {"labels_of_unlike_depth",
     {Node("n0", ".", ""), Node("n1", ".", "b0"), Node("n2", ".", "b0/r0")},
     {1, 2, 1},
     "n1:0 n2:0"},
};

INSTANTIATE_TEST_SUITE_P(All, PlacementTable, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(Placement, TellsNeverFromNotNow) {
  const std::vector<NodeSlots> nodes = {Node("n0", "xx")};
  EXPECT_EQ(CheckFit(nodes, {1, 1, 3})->reason, RefusalReason::kNeverFits);
  EXPECT_EQ(CheckFit(nodes, {1, 1, 2})->reason, RefusalReason::kNotNow);
}

// Whatever the free slots, an answer uses each free slot at most once and no other, and a refusal
// is right by the sums.
TEST(Placement, UsesOnlyFreeSlotsOnce) {
  uint32_t random = 12345;
  auto next = [&random](uint32_t bound) {
    random = random * 1664525u + 1013904223u;
    return (random >> 16) % bound;
  };
  int placed = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<NodeSlots> nodes;
    std::set<std::pair<std::string, int32_t>> free;
    for (uint32_t n = 0; n < 1 + next(6); ++n) {
      std::string slots(1 + next(6), '.');
      for (char& slot : slots) slot = next(3) == 0 ? 'x' : '.';
      nodes.push_back(Node(absl::StrCat("n", n), slots, absl::StrCat("b", next(2), "/r", next(2))));
      for (int32_t slot : nodes.back().free_slots) free.insert({nodes.back().id, slot});
    }
    const Mesh mesh{static_cast<int32_t>(1 + next(3)), static_cast<int32_t>(1 + next(3)),
                    static_cast<int32_t>(1 + next(4))};
    const auto answer = Place(nodes, mesh);
    if (!std::holds_alternative<Placements>(answer)) continue;
    ++placed;
    const auto& ranks = std::get<Placements>(answer);
    ASSERT_EQ(static_cast<int32_t>(ranks.size()), mesh.world_size());
    for (int32_t i = 0; i < mesh.world_size(); ++i) {
      ASSERT_EQ(ranks[i].rank, i);
      ASSERT_EQ(free.erase({ranks[i].node, ranks[i].slot}), 1u) << "round " << round;
    }
  }
  EXPECT_GT(placed, 500);
}

}  // namespace
}  // namespace fedshard::core
