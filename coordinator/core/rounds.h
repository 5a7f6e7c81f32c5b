// The round protocol: the start (round 0), plan, votes, the one decision, evaluation and summary.
#pragma once

#include <string>

#include "coordinator/core/transition.h"

namespace fedshard::core {

void HandleGroupReady(Transition& t, const GroupReady& command);
void HandleRankVote(Transition& t, const RankVote& command);
void HandleEvaluationReport(Transition& t, const EvaluationReport& command);
void HandleJobSummary(Transition& t, const JobSummary& command);
void HandleCheckpointReport(Transition& t, const CheckpointReport& command);

// The open round's votes are overdue: the job fails with VOTE_TIMEOUT, or with HASH_MISMATCH when
// those that came disagree.
void FailOverdueVotes(Transition& t, Job& job);

}  // namespace fedshard::core
