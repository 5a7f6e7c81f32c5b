#include "coordinator/rpc/translate_job.h"

#include <algorithm>
#include <string>

#include "common/spec/validate.h"
#include "common/utf8.h"

namespace fedshard::rpc {
namespace {

void FillProgress(const core::Job& job, const service::View& view, v1::JobProgress& out) {
  const service::JobProgress progress = view.telemetry.ProgressOf(job, view.now.steady_us);
  out.set_step(progress.step);
  out.set_total_steps(job.spec.total_steps);
  out.set_committed_tokens(job.committed_tokens);
  out.set_total_tokens(service::TotalTokens(job.spec));
  out.set_rounds_committed(job.rounds_committed);
  out.set_rounds_aborted(job.rounds_aborted);
  out.set_loss(progress.loss.value_or(0));
  out.set_gradient_norm(progress.gradient_norm);
  out.set_learning_rate(progress.learning_rate);
  out.set_tokens_per_second(progress.tokens_per_second);
  if (job.validation_loss) out.set_validation_loss(*job.validation_loss);
  if (progress.eta_seconds) out.set_eta_seconds(*progress.eta_seconds);
  out.set_checkpoint(ValidUtf8(job.checkpoint));
  out.set_checkpoint_step(job.checkpoint_step);
  int64_t skipped = 0;
  for (const core::Group& group : job.groups) skipped = std::max(skipped, group.skipped_steps);
  out.set_skipped_steps(skipped);
  for (const core::Group& group : job.groups) {
    v1::GroupProgress* one = out.add_groups();
    one->set_group(group.index);
    one->set_state(GroupStateToProto(group.state));
    const auto live = progress.groups.find(group.index);
    one->set_step(group.steps);
    if (live == progress.groups.end()) continue;
    one->set_step(std::max(group.steps, live->second.last.step));
    one->set_loss(live->second.last.loss);
  }
}

void FillBytes(const core::Job& job, v1::TierBytes& out) {
  const double steps = static_cast<double>(job.committed_steps - job.spec.first_step) *
                       std::max(1, job.spec.mesh.world_size());
  if (steps <= 0) return;
  out.set_shard(job.result.bytes.shard / steps);
  out.set_replica(job.result.bytes.replica / steps);
  out.set_federation(job.result.bytes.federation / steps);
}

void FillResult(const core::Job& job, v1::JobResult& out) {
  const core::JobResult& result = job.result;
  out.set_steps(job.committed_steps);
  out.set_tokens(job.committed_tokens);
  out.set_rounds_committed(job.rounds_committed);
  out.set_rounds_aborted(job.rounds_aborted);
  if (result.train_loss_first) out.set_train_loss_first(*result.train_loss_first);
  if (result.train_loss_last) out.set_train_loss_last(*result.train_loss_last);
  if (result.validation_loss_first) out.set_validation_loss_first(*result.validation_loss_first);
  if (result.validation_loss_last) out.set_validation_loss_last(*result.validation_loss_last);
  const double training_seconds = result.step_seconds + result.averaging_seconds;
  if (training_seconds > 0) {
    out.set_tokens_per_second((job.committed_tokens - job.spec.first_tokens) / training_seconds);
  }
  if (job.started.steady_us != 0) {
    out.set_wall_seconds((job.ended.steady_us - job.started.steady_us) / 1e6);
  }
  FillBytes(job, *out.mutable_bytes_per_rank_per_step());
  out.set_parameters(result.parameters);
  out.set_padded_parameters(result.padded_parameters);
  out.set_parameter_hash(result.parameter_hash);
  out.mutable_sample_tokens()->Add(result.sample_tokens.begin(), result.sample_tokens.end());
}

}  // namespace

core::JobSpec SpecToCore(const v1::JobSpec& spec) {
  core::JobSpec out;
  out.id = spec.id();
  out.mesh = {spec.mesh().federation_groups(), spec.mesh().replicas(), spec.mesh().shards()};
  out.averages = Averages(spec);
  out.weight_by_tokens = spec.federation().weighting() != v1::WEIGHTING_EQUAL;
  out.total_steps = spec.training().steps();
  out.steps_per_round = spec.federation().every_steps();
  out.samples_per_step = SamplesPerGroupStep(spec);
  out.tokens_per_sample = spec.data().sequence_length();
  out.evaluates = spec.evaluation().sequences() > 0;
  out.evaluate_every_rounds = spec.evaluation().every_rounds();
  out.checkpoints = !spec.checkpoint().directory().empty();
  out.checkpoint_every_rounds = spec.checkpoint().every_rounds();
  out.first_step = spec.checkpoint().resume().step();
  out.first_tokens = spec.checkpoint().resume().tokens();
  out.first_sample = spec.checkpoint().resume().next_sample();
  out.blob = spec.SerializeAsString();
  return out;
}

v1::Job JobToProto(const core::Job& job, const service::View& view) {
  v1::Job out;
  out.set_name("jobs/" + job.spec.id);
  out.set_uid(job.uid);
  // The blob was serialised by SpecToCore.
  out.mutable_spec()->ParseFromString(job.spec.blob);
  out.set_state(JobStateToProto(job.state));
  out.set_reason(ValidUtf8(job.reason));
  out.set_message(ValidUtf8(job.message));
  for (const auto& [type, condition] : job.conditions) {
    v1::Condition* one = out.add_conditions();
    one->set_type(type);
    one->set_active(condition.active);
    one->set_reason(ValidUtf8(condition.reason));
    one->set_message(ValidUtf8(condition.message));
    *one->mutable_last_transition_time() = TimeToProto(condition.changed.wall_us);
  }
  *out.mutable_create_time() = TimeToProto(job.created.wall_us);
  if (job.started.steady_us != 0) *out.mutable_start_time() = TimeToProto(job.started.wall_us);
  if (job.ended.steady_us != 0) *out.mutable_end_time() = TimeToProto(job.ended.wall_us);
  FillProgress(job, view, *out.mutable_progress());
  if (core::IsTerminal(job.state)) FillResult(job, *out.mutable_result());
  return out;
}

v1::Job ValidatedJobToProto(const v1::JobSpec& spec, const std::string& reason,
                            const std::string& message) {
  v1::Job out;
  out.set_name("jobs/" + spec.id());
  *out.mutable_spec() = spec;
  out.set_state(v1::JOB_STATE_QUEUED);
  out.set_reason(reason);
  out.set_message(message);
  return out;
}

v1::JobState JobStateToProto(core::JobState state) {
  switch (state) {
    case core::JobState::kQueued:
      return v1::JOB_STATE_QUEUED;
    case core::JobState::kStarting:
      return v1::JOB_STATE_STARTING;
    case core::JobState::kRunning:
      return v1::JOB_STATE_RUNNING;
    case core::JobState::kCompleted:
      return v1::JOB_STATE_COMPLETED;
    case core::JobState::kFailed:
      return v1::JOB_STATE_FAILED;
    case core::JobState::kCanceling:
      return v1::JOB_STATE_CANCELING;
    case core::JobState::kCanceled:
      return v1::JOB_STATE_CANCELED;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

v1::GroupState GroupStateToProto(core::GroupState state) {
  switch (state) {
    case core::GroupState::kStarting:
      return v1::GROUP_STATE_STARTING;
    case core::GroupState::kTraining:
      return v1::GROUP_STATE_TRAINING;
    case core::GroupState::kReady:
      return v1::GROUP_STATE_READY;
    case core::GroupState::kAveraging:
      return v1::GROUP_STATE_AVERAGING;
    case core::GroupState::kStopping:
      return v1::GROUP_STATE_STOPPING;
    case core::GroupState::kStopped:
      return v1::GROUP_STATE_STOPPED;
  }
  return v1::GROUP_STATE_UNSPECIFIED;
}

google::protobuf::Timestamp TimeToProto(int64_t wall_us) {
  google::protobuf::Timestamp out;
  out.set_seconds(wall_us / 1'000'000);
  out.set_nanos(static_cast<int32_t>(wall_us % 1'000'000) * 1000);
  return out;
}

}  // namespace fedshard::rpc
