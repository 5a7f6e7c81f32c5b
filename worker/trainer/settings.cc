#include "worker/trainer/settings.h"

#include "absl/strings/str_cat.h"
#include "common/spec/model_config_json.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "fedshard/v1/job.pb.h"

namespace fedshard::trainer {

absl::StatusOr<Settings> ParseSettings(const std::string& bytes) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(bytes))
    return absl::InvalidArgumentError("the job specification is garbled");
  if (const auto violations = ValidateSpec(spec); !violations.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(violations[0].field(), ": ", violations[0].description()));
  }
  Settings s;
  ASSIGN_OR_RETURN(s.model, ParseModelConfig(spec.model().config_json()));
  s.model_seed = spec.model().seed();
  s.train_path = spec.data().train();
  s.validation_path = spec.data().validation();
  s.sequence_length = spec.data().sequence_length();
  s.data_seed = spec.data().seed();
  s.shuffled = spec.data().order() == v1::SAMPLE_ORDER_SHUFFLED;
  s.mesh = {spec.mesh().federation_groups(), spec.mesh().replicas(), spec.mesh().shards()};
  s.averages = Averages(spec);
  s.micro_batch = spec.training().micro_batch();
  s.accumulation = spec.training().accumulation();
  const v1::OptimizerSpec& optimizer = spec.training().optimizer();
  s.optimizer = {optimizer.type() == v1::OPTIMIZER_TYPE_ADAMW,
                 optimizer.beta1(),
                 optimizer.beta2(),
                 optimizer.eps(),
                 optimizer.weight_decay(),
                 optimizer.clip(),
                 optimizer.momentum()};
  const v1::ScheduleSpec& schedule = spec.training().schedule();
  s.schedule.type = schedule.type() == v1::SCHEDULE_TYPE_COSINE
                        ? engine::LearningRateSchedule::Type::kCosine
                        : engine::LearningRateSchedule::Type::kConstant;
  s.schedule.peak = optimizer.learning_rate();
  s.schedule.warmup_tokens = schedule.warmup_tokens();
  s.schedule.total_tokens = TotalTokens(spec);
  s.schedule.final_ratio = schedule.final_ratio();
  s.check_replicas_every = spec.training().check_replicas_every();
  s.chunk_bytes = spec.federation().chunk_bytes();
  s.evaluation_sequences = spec.evaluation().sequences();
  if (spec.evaluation().has_sample()) {
    const v1::SampleSpec& sample = spec.evaluation().sample();
    s.sample = {{sample.prompt_tokens().begin(), sample.prompt_tokens().end()},
                sample.tokens(),
                sample.temperature(),
                sample.seed()};
  }
  s.cuda = spec.resources().device() == v1::DEVICE_CUDA;
  s.threads = spec.resources().threads_per_rank();
  s.collective_timeout_ms = int64_t{1000} * spec.resources().collective_timeout_seconds();
  return s;
}

}  // namespace fedshard::trainer
