#include "coordinator/rpc/translate_cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "coordinator/rpc/translate_job.h"

namespace fedshard::rpc {
namespace {

v1::RoundState RoundStateToProto(core::RoundState state) {
  switch (state) {
    case core::RoundState::kTraining:
      return v1::ROUND_STATE_TRAINING;
    case core::RoundState::kAveraging:
      return v1::ROUND_STATE_AVERAGING;
    case core::RoundState::kCommitted:
      return v1::ROUND_STATE_COMMITTED;
    case core::RoundState::kAborted:
      return v1::ROUND_STATE_ABORTED;
  }
  return v1::ROUND_STATE_UNSPECIFIED;
}

}  // namespace

v1::Node NodeToProto(const core::Node& node, int64_t now_us) {
  v1::Node out;
  out.set_name("nodes/" + node.id);
  out.set_state(node.state == core::NodeState::kActive ? v1::NODE_STATE_ACTIVE
                                                       : v1::NODE_STATE_LOST);
  out.set_incarnation(node.incarnation);
  out.set_slots(static_cast<int32_t>(node.slots.size()));
  out.set_slots_used(static_cast<int32_t>(node.slots.size() -
                                          std::count(node.slots.begin(), node.slots.end(), "")));
  for (const auto& [key, value] : node.labels) {
    v1::Label* label = out.add_labels();
    label->set_key(key);
    label->set_value(value);
  }
  out.set_data_address(node.data_address);
  *out.mutable_register_time() = TimeToProto(node.registered.wall_us);
  out.set_heartbeat_age_seconds((now_us - node.last_heartbeat_us) / 1e6);
  out.set_version(node.version);
  return out;
}

v1::Group GroupToProto(const core::JobId& job, const core::Group& group) {
  v1::Group out;
  out.set_name(absl::StrCat("jobs/", job, "/groups/", group.index));
  out.set_state(GroupStateToProto(group.state));
  out.set_generation(group.generation);
  out.set_steps(group.steps);
  out.set_tokens(group.tokens);
  for (const core::Rank& rank : group.ranks) {
    v1::RankPlacement* placement = out.add_ranks();
    placement->set_rank(rank.placement.rank);
    placement->set_node(rank.placement.node);
    placement->set_slot(rank.placement.slot);
  }
  return out;
}

v1::Round RoundToProto(const core::JobId& job, const core::Round& round, int64_t now_us) {
  v1::Round out;
  out.set_name(absl::StrCat("jobs/", job, "/rounds/", round.number));
  out.set_number(round.number);
  out.set_state(RoundStateToProto(round.state));
  out.set_attempt(round.attempt);
  for (const core::Participant& one : round.participants) {
    v1::RoundParticipant* participant = out.add_participants();
    participant->set_group(one.group);
    participant->set_steps(one.steps);
    participant->set_tokens(one.tokens);
    participant->set_weight(one.weight);
    participant->set_first_sample(one.assignment.lease.first_sample);
    participant->set_sample_count(one.assignment.lease.sample_count);
  }
  const int64_t end_us = round.decided_us != 0 ? round.decided_us : now_us;
  out.set_duration_seconds((end_us - round.started_us) / 1e6);
  if (round.planned_us != 0) out.set_decision_seconds((end_us - round.planned_us) / 1e6);
  out.set_message(ValidUtf8(round.message));
  if (round.validation_loss) out.set_validation_loss(*round.validation_loss);
  if (round.decided_us != 0) *out.mutable_decide_time() = TimeToProto(round.decided.wall_us);
  return out;
}

}  // namespace fedshard::rpc
