#include "coordinator/core/rounds.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/ranks.h"
#include "coordinator/core/stopping.h"
#include "coordinator/core/votes.h"

namespace fedshard::core {
namespace {

Round* OpenRound(Job& job) {
  if (job.rounds.empty()) return nullptr;
  Round& round = job.rounds.back();
  const bool open = round.state == RoundState::kTraining || round.state == RoundState::kAveraging;
  return open ? &round : nullptr;
}

bool MayReport(const Job& job, const Rank& rank) {
  return !job.stopping && !IsTerminal(job.state) && rank.state != RankState::kExited;
}

void SetGroupStates(Job& job, GroupState state) {
  for (Group& group : job.groups) group.state = state;
}

bool OrdersCheckpoint(const JobSpec& spec, int64_t round, bool finish) {
  if (!spec.checkpoints || round == 0) return false;
  const int64_t every = spec.checkpoint_every_rounds;
  return finish || (every > 0 && round % every == 0);
}

// Of round 0 too: the initial parameters.
bool OrdersEvaluation(const JobSpec& spec, int64_t round, bool finish) {
  if (!spec.evaluates) return false;
  const int64_t every = spec.evaluate_every_rounds;
  return round == 0 || finish || (every > 0 && round % every == 0);
}

// Leases the next samples to every group, in group order.
Round& AppendRound(Transition& t, Job& job) {
  const JobSpec& spec = job.spec;
  Round round;
  round.number = job.rounds_committed + 1;
  round.started_us = t.now.steady_us;
  const int64_t steps = std::min(spec.steps_per_round, spec.total_steps - job.committed_steps);
  const bool finish = job.committed_steps + steps >= spec.total_steps;
  const bool must_align = finish || OrdersCheckpoint(spec, round.number, finish) ||
                          OrdersEvaluation(spec, round.number, finish);
  for (const Group& group : job.groups) {
    Participant participant;
    participant.group = group.index;
    RoundAssignment& assignment = participant.assignment;
    assignment.round = round.number;
    assignment.steps = steps;
    assignment.lease = {job.next_sample, steps * spec.samples_per_step};
    assignment.first_step = job.committed_steps;
    assignment.committed_tokens = job.committed_tokens;
    assignment.tokens_per_step = spec.mesh.groups * spec.samples_per_step * spec.tokens_per_sample;
    assignment.must_align = must_align;
    job.next_sample += assignment.lease.sample_count;
    round.participants.push_back(participant);
  }
  job.rounds.push_back(std::move(round));
  const size_t kept = std::max<size_t>(1, t.options.max_rounds_kept);
  while (job.rounds.size() > kept) job.rounds.pop_front();
  return job.rounds.back();
}

// Tells everyone that `round` is committed and what comes next. `round` may be gone from the
// listing afterwards.
void SendCommit(Transition& t, Job& job, Round& round) {
  RoundDecision decision;
  decision.round = round.number;
  decision.attempt = round.attempt;
  decision.commit = true;
  decision.finish = job.committed_steps >= job.spec.total_steps;
  decision.evaluate = OrdersEvaluation(job.spec, round.number, decision.finish);
  round.evaluates = decision.evaluate;
  job.finishing = decision.finish;
  if (OrdersCheckpoint(job.spec, round.number, decision.finish)) {
    // All that was leased so far is committed.
    decision.checkpoint = {job.committed_steps, job.committed_tokens, job.next_sample};
  }
  SetGroupStates(job, GroupState::kTraining);
  const Round* next = decision.finish ? nullptr : &AppendRound(t, job);
  for (const Group& group : job.groups) {
    if (next != nullptr) decision.next = next->participants.at(group.index).assignment;
    t.SendToGroup(job, group, decision);
  }
}

void MarkCommitted(const Transition& t, Round& round) {
  round.state = RoundState::kCommitted;
  round.decided_us = t.now.steady_us;
  round.decided = t.now;
  round.votes.clear();
}

void CommitStart(Transition& t, Job& job) {
  job.deadline_us.reset();
  job.state = JobState::kRunning;
  job.reason = "TRAINING";
  job.message = "all ranks are ready";
  job.started = t.now;
  MarkCommitted(t, job.start);
  t.SetCondition(job, kReady, true, job.reason, job.message);
  t.JobEvent(job, job.reason, job.message);
  SendCommit(t, job, job.start);
}

// Adds the round to the job's counters and results.
void Account(Job& job, const Round& round) {
  double first_loss = 0, last_loss = 0, step_seconds = 0, averaging_seconds = 0;
  int64_t tokens = 0, measured = 0;
  for (const Participant& participant : round.participants) {
    Group& group = job.groups.at(participant.group);
    group.steps += participant.steps;
    group.tokens += participant.tokens;
    group.skipped_steps += participant.skipped_steps;
    tokens += participant.tokens;
    step_seconds = std::max(step_seconds, participant.step_seconds);
    if (participant.skipped_steps == participant.steps) continue;  // It has no loss.
    measured += participant.tokens;
    first_loss += participant.first_loss * participant.tokens;
    last_loss += participant.last_loss * participant.tokens;
  }
  for (const auto& [rank, vote] : round.votes) {
    averaging_seconds = std::max(averaging_seconds, vote.averaging_seconds);
    job.result.bytes.shard += vote.bytes.shard;
    job.result.bytes.replica += vote.bytes.replica;
    job.result.bytes.federation += vote.bytes.federation;
  }
  if (measured > 0) {
    if (!job.result.train_loss_first) job.result.train_loss_first = first_loss / measured;
    job.result.train_loss_last = last_loss / measured;
  }
  job.committed_steps += round.participants.front().assignment.steps;
  job.committed_tokens += tokens;
  ++job.rounds_committed;
  job.result.step_seconds += step_seconds;
  job.result.averaging_seconds += averaging_seconds;
}

void CommitRound(Transition& t, Job& job, Round& round) {
  job.deadline_us.reset();
  Account(job, round);
  MarkCommitted(t, round);
  t.JobEvent(job, "ROUND_COMMITTED",
             absl::StrCat("round ", round.number, ": ", job.committed_steps, " of ",
                          job.spec.total_steps, " steps"));
  SendCommit(t, job, round);
}

// The round is dropped and the job fails. Ranks hear of the abort before they are stopped.
void FailRound(Transition& t, Job& job, const Round& round, const std::string& reason,
               const std::string& message) {
  RoundDecision decision;
  decision.round = round.number;
  decision.attempt = round.attempt;
  decision.message = message;
  for (const Group& group : job.groups) t.SendToGroup(job, group, decision);
  FailJob(t, job, reason, message);
}

void DecideIfAllVoted(Transition& t, Job& job, Round& round) {
  if (static_cast<int32_t>(round.votes.size()) < job.spec.mesh.world_size()) return;
  if (const std::string mismatch = DescribeMismatch(job, round); !mismatch.empty()) {
    return FailRound(t, job, round, "HASH_MISMATCH", mismatch);
  }
  if (round.number == 0) {
    CommitStart(t, job);
  } else {
    CommitRound(t, job, round);
  }
}

void SetWeights(const Job& job, Round& round) {
  int64_t tokens = 0;
  for (const Participant& participant : round.participants) tokens += participant.tokens;
  const bool by_tokens = job.spec.weight_by_tokens && tokens > 0;
  for (Participant& participant : round.participants) {
    participant.weight = by_tokens ? static_cast<double>(participant.tokens) / tokens
                                   : 1.0 / round.participants.size();
  }
}

void PlanIfAllReady(Transition& t, Job& job, Round& round) {
  for (const Participant& participant : round.participants) {
    if (!participant.ready) return;
  }
  SetWeights(job, round);
  round.state = RoundState::kAveraging;
  round.planned_us = t.now.steady_us;
  job.deadline_us = t.now.steady_us + t.options.vote_deadline_us;
  SetGroupStates(job, GroupState::kAveraging);
  RoundPlan plan;
  plan.round = round.number;
  plan.attempt = round.attempt;
  for (const Participant& participant : round.participants) {
    plan.participants.push_back({participant.group, participant.weight});
  }
  for (const Group& group : job.groups) t.SendToGroup(job, group, plan);
}

// "" when the report fits the assignment.
std::string FindFault(const JobSpec& spec, const GroupReady& report,
                      const RoundAssignment& assignment) {
  if (report.steps != assignment.steps) {
    return absl::StrCat("made ", report.steps, " steps of ", assignment.steps);
  }
  const int64_t leased = assignment.lease.sample_count * spec.tokens_per_sample;
  if (report.skipped_steps < 0 || report.skipped_steps > report.steps) {
    return absl::StrCat("skipped ", report.skipped_steps, " steps of ", report.steps);
  }
  if (report.tokens < 0 || report.tokens > leased) {
    return absl::StrCat("reports ", report.tokens, " tokens, its lease has ", leased);
  }
  return "";
}

}  // namespace

void HandleGroupReady(Transition& t, const GroupReady& command) {
  const Sender sender = Resolve(t, command.from);
  if (sender.job == nullptr) return;
  Job& job = *sender.job;
  auto ignore = [&](const char* why) {
    t.Ignore(
        command.from.job, command.from.node,
        absl::StrCat("group ", sender.group->index, " ready for round ", command.round, ": ", why));
  };
  Round* round = OpenRound(job);
  if (!MayReport(job, *sender.rank)) return ignore("the job or the rank has ended");
  if (!IsFirstOfGroup(job, command.from.rank)) return ignore("not from the group's first rank");
  if (round == nullptr || round->number != command.round || round->state != RoundState::kTraining) {
    return ignore("this round is not in training");
  }
  Participant& participant = round->participants.at(sender.group->index);
  if (participant.ready) return ignore("it was ready already");
  if (const std::string fault = FindFault(job.spec, command, participant.assignment);
      !fault.empty()) {
    return FailJob(
        t, job, "INTERNAL",
        absl::StrCat("group ", participant.group, " in round ", round->number, " ", fault));
  }
  t.changed = true;
  participant.ready = true;
  participant.steps = command.steps;
  participant.tokens = command.tokens;
  participant.first_loss = command.first_loss;
  participant.last_loss = command.last_loss;
  participant.step_seconds = command.step_seconds;
  participant.skipped_steps = command.skipped_steps;
  if (command.skipped_steps > 0) {
    t.JobEvent(job, "STEPS_SKIPPED",
               absl::StrCat("group ", participant.group, " skipped ",
                            CountOf(command.skipped_steps, "step"), " of round ", round->number,
                            ": loss or gradient not finite"));
  }
  sender.group->state = GroupState::kReady;
  PlanIfAllReady(t, job, *round);
}

void HandleRankVote(Transition& t, const RankVote& command) {
  const Sender sender = Resolve(t, command.from);
  if (sender.job == nullptr) return;
  Job& job = *sender.job;
  auto ignore = [&](const char* why) {
    t.Ignore(
        command.from.job, command.from.node,
        absl::StrCat("vote of rank ", command.from.rank, " for round ", command.round, ": ", why));
  };
  if (!MayReport(job, *sender.rank)) return ignore("the job or the rank has ended");
  Round* round = OpenRound(job);
  if (command.round == 0) {
    // The start has no plan, so there is no attempt to compare.
    if (job.state != JobState::kStarting) return ignore("the job has started already");
    round = &job.start;
  } else if (round == nullptr || round->number != command.round ||
             round->attempt != command.attempt || round->state != RoundState::kAveraging) {
    return ignore("this attempt is not open");
  }
  const Vote vote{command.shard_hash, command.bytes, command.averaging_seconds};
  if (!round->votes.emplace(command.from.rank, vote).second) return ignore("it voted already");
  t.changed = true;
  if (command.round == 0) {
    sender.rank->state = RankState::kRunning;
    if (command.from.rank == 0) {
      job.result.parameters = command.parameters;
      job.result.padded_parameters = command.padded_parameters;
    }
  }
  DecideIfAllVoted(t, job, *round);
}

void FailOverdueVotes(Transition& t, Job& job) {
  Round* round = OpenRound(job);
  if (round == nullptr) return;
  if (const std::string mismatch = DescribeMismatch(job, *round); !mismatch.empty()) {
    return FailRound(t, job, *round, "HASH_MISMATCH", mismatch);
  }
  const std::string missing = DescribeRanks(
      job, [round](const Rank& rank) { return round->votes.count(rank.placement.rank) == 0; });
  FailRound(t, job, *round, "VOTE_TIMEOUT",
            absl::StrCat("round ", round->number, ": no vote within ",
                         t.options.vote_deadline_us / 1e6, " s from ", missing));
}

}  // namespace fedshard::core
