// What comes after a commit: validation losses and the job's summary.
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/ranks.h"
#include "coordinator/core/rounds.h"

namespace fedshard::core {
namespace {

Round* FindRound(Job& job, int64_t number) {
  if (number == 0) return &job.start;
  for (Round& round : job.rounds) {
    if (round.number == number) return &round;
  }
  return nullptr;
}

bool IsLast(const Job& job, const Round& round) {
  return job.finishing && round.number == job.rounds_committed;
}

void CompleteEvaluation(Transition& t, Job& job, Round& round) {
  double loss_sum = 0;
  int64_t tokens = 0;
  for (const auto& [group, part] : round.evaluation) {
    loss_sum += part.first;
    tokens += part.second;
  }
  if (tokens <= 0) return t.JobEvent(job, "EVALUATED", "no tokens to evaluate on");
  round.validation_loss = loss_sum / tokens;
  job.validation_loss = round.validation_loss;
  if (round.number == 0) job.result.validation_loss_first = round.validation_loss;
  if (IsLast(job, round)) job.result.validation_loss_last = round.validation_loss;
  t.JobEvent(job, "EVALUATED",
             absl::StrCat("round ", round.number, ": validation loss ", *round.validation_loss));
}

}  // namespace

void HandleEvaluationReport(Transition& t, const EvaluationReport& command) {
  const Sender sender = Resolve(t, command.from);
  if (sender.job == nullptr) return;
  Job& job = *sender.job;
  Round* round = FindRound(job, command.round);
  const bool wanted = !job.stopping && !IsTerminal(job.state) && round != nullptr &&
                      round->state == RoundState::kCommitted && round->evaluates &&
                      IsFirstOfGroup(job, command.from.rank);
  if (!wanted ||
      !round->evaluation.emplace(sender.group->index, std::pair(command.loss_sum, command.tokens))
           .second) {
    return t.Ignore(command.from.job, command.from.node,
                    absl::StrCat("evaluation of rank ", command.from.rank, " for round ",
                                 command.round, " is not awaited"));
  }
  t.changed = true;
  if (round->evaluation.size() == job.groups.size()) CompleteEvaluation(t, job, *round);
}

void HandleJobSummary(Transition& t, const JobSummary& command) {
  const Sender sender = Resolve(t, command.from);
  if (sender.job == nullptr) return;
  Job& job = *sender.job;
  if (!job.finishing || job.stopping || IsTerminal(job.state) || job.summarized ||
      command.from.rank != 0) {
    return t.Ignore(command.from.job, command.from.node,
                    absl::StrCat("summary of rank ", command.from.rank, " is not awaited"));
  }
  t.changed = true;
  job.summarized = true;
  job.result.parameter_hash = command.parameter_hash;
  job.result.sample_tokens = command.sample_tokens;
}

}  // namespace fedshard::core
