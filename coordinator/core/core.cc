#include "coordinator/core/core.h"

#include <utility>
#include <variant>

#include "coordinator/core/deadlines.h"
#include "coordinator/core/inventory.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/queue.h"
#include "coordinator/core/ranks.h"
#include "coordinator/core/record.h"
#include "coordinator/core/rounds.h"
#include "coordinator/core/transition.h"

namespace fedshard::core {
namespace {

// One overload per command.
struct Dispatcher {
  Transition& t;

  void operator()(const SubmitJob& c) const { HandleSubmitJob(t, c); }
  void operator()(const CancelJob& c) const { HandleCancelJob(t, c); }
  void operator()(const RegisterNode& c) const { HandleRegisterNode(t, c); }
  void operator()(const NodeHeartbeat& c) const { HandleNodeHeartbeat(t, c); }
  void operator()(const NodeDisconnected& c) const { HandleNodeDisconnected(t, c); }
  void operator()(const NodeLost& c) const { HandleNodeLost(t, c); }
  void operator()(const GroupReady& c) const { HandleGroupReady(t, c); }
  void operator()(const RankVote& c) const { HandleRankVote(t, c); }
  void operator()(const EvaluationReport& c) const { HandleEvaluationReport(t, c); }
  void operator()(const JobSummary& c) const { HandleJobSummary(t, c); }
  void operator()(const CheckpointReport& c) const { HandleCheckpointReport(t, c); }
  void operator()(const RankFailure& c) const { HandleRankFailure(t, c); }
  void operator()(const RankExited& c) const { HandleRankExited(t, c); }
  void operator()(const DeadlinesPassed&) const { HandleDeadlinesPassed(t); }
  void operator()(const Tick&) const {}  // Core::Apply turns it into what it finds.
};

}  // namespace

Core::Core(CoreOptions options) : options_(std::move(options)) {}

Effects Core::Apply(const Command& command, Instant now) {
  Effects effects;
  if (std::holds_alternative<Tick>(command)) {
    for (const NodeLost& lost : OverdueNodes(options_, state_, now)) ApplyOne(lost, now, effects);
    if (AnyDeadlinePassed(state_, now)) ApplyOne(DeadlinesPassed{}, now, effects);
  } else {
    ApplyOne(command, now, effects);
  }
  effects.wake_at_us = NextDeadline(options_, state_);
  return effects;
}

void Core::ApplyOne(const Command& command, Instant now, Effects& effects) {
  Transition t(options_, state_, now, effects);
  std::visit(Dispatcher{t}, command);
  if (t.look_at_queue) PlaceQueued(t);
  if (t.changed) effects.records.push_back(EncodeRecord(command, now));
}

}  // namespace fedshard::core
