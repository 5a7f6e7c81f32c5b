#include "worker/trainer/settings.h"

#include "absl/strings/str_cat.h"
#include "common/spec/model_config_json.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "fedshard/v1/job.pb.h"

namespace fedshard::trainer {
namespace {

StepSettings StepFrom(const v1::TrainingSpec& training) {
  StepSettings step;
  step.bf16 = training.precision() == v1::PRECISION_BF16;
  step.gather_bf16 = training.gather_precision() == v1::PRECISION_UNSPECIFIED
                         ? step.bf16
                         : training.gather_precision() == v1::PRECISION_BF16;
  step.reduce_bf16 = training.reduce_precision() == v1::PRECISION_BF16;
  step.force = training.force_precision();
  step.recompute = training.recompute() == v1::RECOMPUTE_BLOCK       ? RecomputeSetting::kBlock
                   : training.recompute() == v1::RECOMPUTE_SELECTIVE ? RecomputeSetting::kSelective
                                                                     : RecomputeSetting::kNone;
  step.accumulate_locally = training.accumulate() == v1::ACCUMULATE_LOCAL;
  return step;
}

OuterOptimizer OuterFrom(v1::OuterOptimizerType type) {
  switch (type) {
    case v1::OUTER_OPTIMIZER_TYPE_MOMENTUM:
      return OuterOptimizer::kMomentum;
    case v1::OUTER_OPTIMIZER_TYPE_NESTEROV:
      return OuterOptimizer::kNesterov;
    case v1::OUTER_OPTIMIZER_TYPE_ADAM:
      return OuterOptimizer::kAdam;
    default:
      return OuterOptimizer::kNone;
  }
}

FederationSettings FederationFrom(const v1::FederationSpec& federation) {
  const v1::OuterOptimizerSpec& outer = federation.outer_optimizer();
  FederationSettings out;
  out.chunk_bytes = federation.chunk_bytes();
  out.outer = OuterFrom(outer.type());
  out.learning_rate = outer.learning_rate();
  out.momentum = outer.momentum();
  out.beta1 = outer.beta1();
  out.beta2 = outer.beta2();
  out.eps = outer.eps();
  out.moments = federation.optimizer_state() == v1::MOMENTS_POLICY_AVERAGE ? MomentsPolicy::kAverage
                : federation.optimizer_state() == v1::MOMENTS_POLICY_RESET ? MomentsPolicy::kReset
                                                                           : MomentsPolicy::kLocal;
  out.compression = federation.compression() == v1::COMPRESSION_BF16   ? Compression::kBf16
                    : federation.compression() == v1::COMPRESSION_INT8 ? Compression::kInt8
                                                                       : Compression::kNone;
  out.overlap_steps = federation.overlap_steps();
  return out;
}

}  // namespace

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
  s.model_config = spec.model().config_json();
  s.init_directory = spec.model().init_directory();
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
                 optimizer.momentum(),
                 optimizer.moments() == v1::PRECISION_BF16};
  const v1::ScheduleSpec& schedule = spec.training().schedule();
  s.schedule.type = schedule.type() == v1::SCHEDULE_TYPE_COSINE
                        ? engine::LearningRateSchedule::Type::kCosine
                        : engine::LearningRateSchedule::Type::kConstant;
  s.schedule.peak = optimizer.learning_rate();
  s.schedule.warmup_tokens = schedule.warmup_tokens();
  s.schedule.total_tokens = TotalTokens(spec);
  s.schedule.final_ratio = schedule.final_ratio();
  s.check_replicas_every = spec.training().check_replicas_every();
  s.step = StepFrom(spec.training());
  s.non_finite_limit = spec.training().non_finite_limit();
  s.federation = FederationFrom(spec.federation());
  s.checkpoint = {spec.checkpoint().directory(), spec.checkpoint().keep(),
                  spec.checkpoint().resume().path()};
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
