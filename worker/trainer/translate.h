// Between control.h's plain types and the protos. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fedshard/v1/trainer_service.pb.h"
#include "worker/trainer/control.h"

namespace fedshard::trainer {

RankStart TranslateStart(const v1::Start& start);
// Nothing for a directive that this version does not know.
std::optional<Directive> TranslateDirective(const v1::RankDirective& directive);

v1::AttachRequest TranslateSteps(const std::vector<StepRecord>& steps);
v1::AttachRequest TranslateReady(const GroupReady& ready);
v1::AttachRequest TranslateVote(const Vote& vote);
v1::AttachRequest TranslateEvaluation(const Evaluation& evaluation);
v1::AttachRequest TranslateSummary(const Summary& summary);
v1::AttachRequest TranslateCheckpoint(const CheckpointOutcome& outcome);
v1::AttachRequest TranslateFailure(const std::string& reason, const std::string& message);

}  // namespace fedshard::trainer
