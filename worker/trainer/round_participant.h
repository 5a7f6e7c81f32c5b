// A rank's part in the round protocol (docs/design/0001): vote on the start, then round after round
// train, average out of place, vote, and apply what was decided. Owned by main; runs on the
// training thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/mesh.h"
#include "worker/trainer/control.h"
#include "worker/trainer/rank_model.h"
#include "worker/trainer/settings.h"

namespace fedshard::trainer {

class RoundParticipant {
 public:
  // All must outlive this.
  RoundParticipant(const Settings& settings, int32_t rank, Control& control, RankModel& model,
                   const Clock& clock);

  // From the vote on the start to the summary. Throws what Control and RankModel throw.
  void Run();

 private:
  Decision AwaitDecision(int64_t round);
  // The steps of an assignment, and GroupReady.
  void Train(const Assignment& assignment);
  // Waits for the plan of the round, averages, votes, and waits for the decision; again for each
  // new attempt.
  Decision Conclude(int64_t round);
  // Whether averaging begins before step `index` of the assignment.
  bool BeginsAverage(const Assignment& assignment, int64_t index) const;
  void VoteOn(const Plan& plan);
  void Apply(const Decision& decision);
  void Evaluate(int64_t round);
  void Finish();
  // The first rank speaks; every rank logs.
  void ReportCheckpoints(bool wait);
  void ReportStep(const StepRecord& record);
  void FlushSteps();
  bool first_of_group() const { return at_.replica == 0 && at_.shard == 0; }

  const Settings& settings_;
  const int32_t rank_;
  const MeshCoordinates at_;
  Control& control_;
  RankModel& model_;
  const Clock& clock_;

  SentBytes sent_;                  // In the open round, and by the commit of the one before.
  int64_t federation_counted_ = 0;  // Bytes between groups up to here are in sent_, or before it.
  int64_t patience_us_ = 0;         // Of a wait for the coordinator.
  bool average_pending_ = false;
  std::vector<StepRecord> unreported_;
  int64_t reported_us_ = 0;
};

}  // namespace fedshard::trainer
