#include "coordinator/core/jobs.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/queue.h"
#include "coordinator/core/stopping.h"

namespace fedshard::core {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;

// The core divides by these and multiplies them; everything else about a spec is its adapter's
// business.
std::string FindBadField(const JobSpec& spec) {
  if (spec.id.empty()) return "id is empty";
  const Mesh& mesh = spec.mesh;
  if (mesh.groups < 1 || mesh.replicas < 1 || mesh.shards < 1) {
    return "mesh sizes must be at least 1";
  }
  if (static_cast<double>(mesh.groups) * mesh.replicas * mesh.shards > kMaxRanks) {
    return absl::StrCat("mesh has more than ", kMaxRanks, " ranks");
  }
  if (spec.total_steps < 1) return "training.steps must be at least 1";
  if (spec.steps_per_round < 1) return "federation.every_steps must be at least 1";
  if (spec.samples_per_step < 1) return "samples per step must be at least 1";
  if (spec.tokens_per_sample < 1) return "data.sequence_length must be at least 1";
  if (spec.evaluate_every_rounds < 0) return "evaluation.every_rounds must not be negative";
  if (spec.checkpoint_every_rounds < 0) return "checkpoint.every_rounds must not be negative";
  if (spec.first_step < 0 || spec.first_tokens < 0 || spec.first_sample < 0) {
    return "checkpoint.resume must not be negative";
  }
  if (spec.first_step >= spec.total_steps) {
    return absl::StrCat("checkpoint.resume is at step ", spec.first_step,
                        " of training.steps = ", spec.total_steps, ": nothing is left to do");
  }
  const double tokens = static_cast<double>(spec.total_steps) * spec.samples_per_step *
                        spec.tokens_per_sample * mesh.groups;
  if (tokens > 4e18) return "the job's tokens are more than 4e18";
  // Half of what 64 bits hold, so that sums with `tokens` and samples stay inside.
  if (spec.first_tokens > int64_t{1} << 62 || spec.first_sample > int64_t{1} << 62) {
    return "checkpoint.resume has more than 2^62 tokens";
  }
  return "";
}

void Remember(Transition& t, const std::string& request_id, RequestKind kind, const JobId& job) {
  if (request_id.empty()) return;
  t.state.requests[request_id] = {kind, job};
  t.state.request_order.push_back(request_id);
  while (t.state.request_order.size() > t.options.max_request_ids) {
    t.state.requests.erase(t.state.request_order.front());
    t.state.request_order.pop_front();
  }
}

// The request first granted under this id, if any.
const Request* FindRequest(const State& state, const std::string& request_id) {
  if (request_id.empty()) return nullptr;
  auto it = state.requests.find(request_id);
  return it == state.requests.end() ? nullptr : &it->second;
}

void RefuseReusedRequestId(Transition& t, uint64_t reply_to, const std::string& request_id) {
  t.ReplyError(reply_to,
               absl::InvalidArgumentError(absl::StrCat("request_id ", request_id,
                                                       " was used before for a different request")),
               "INVALID_FIELD");
}

void ReplyValidated(Transition& t, const SubmitJob& command) {
  const std::optional<std::string> why = WhyItWouldWait(t.state, command.spec.mesh);
  t.ReplyOk(command.reply_to, command.spec.id);
  Reply& reply = t.effects.replies.back();
  reply.reason = why ? "WAITING_FOR_SLOTS" : "PLACED";
  reply.message = why ? *why : "would start now";
}

void QueueJob(Transition& t, const SubmitJob& command) {
  Job& job = t.state.jobs[command.spec.id];
  job.spec = command.spec;
  job.uid = absl::StrFormat("%012x-%06x", t.now.wall_us, t.state.next_uid++);
  job.created = t.now;
  job.committed_steps = job.spec.first_step;
  job.committed_tokens = job.spec.first_tokens;
  job.next_sample = job.spec.first_sample;
  job.reason = "WAITING_FOR_SLOTS";
  t.state.queue.push_back(job.spec.id);
  Remember(t, command.request_id, RequestKind::kSubmit, job.spec.id);
  t.SetCondition(job, kPlaced, false, job.reason, "");
  t.SetCondition(job, kReady, false, job.reason, "");
  t.changed = t.look_at_queue = true;
  t.JobEvent(job, "QUEUED", CountOf(job.spec.mesh.world_size(), "rank"));
}

}  // namespace

void HandleSubmitJob(Transition& t, const SubmitJob& command) {
  const JobId& id = command.spec.id;
  if (const Request* request = FindRequest(t.state, command.request_id)) {
    const bool same = request->kind == RequestKind::kSubmit && request->job == id &&
                      t.state.jobs.at(id).spec == command.spec;
    if (!same) return RefuseReusedRequestId(t, command.reply_to, command.request_id);
    return t.ReplyOk(command.reply_to, id);
  }
  if (const std::string bad = FindBadField(command.spec); !bad.empty()) {
    return t.ReplyError(command.reply_to, absl::InvalidArgumentError(bad), "INVALID_FIELD");
  }
  if (t.state.jobs.count(id) != 0) {
    return t.ReplyError(command.reply_to,
                        absl::AlreadyExistsError(absl::StrCat("job ", id, " exists already")),
                        "JOB_EXISTS");
  }
  if (t.state.queue.size() >= t.options.max_jobs_queued) {
    return t.ReplyError(
        command.reply_to,
        absl::ResourceExhaustedError(absl::StrCat(CountOf(t.state.queue.size(), "job"),
                                                  " in the queue already, no more are taken")),
        "QUEUE_FULL");
  }
  if (command.validate_only) return ReplyValidated(t, command);
  QueueJob(t, command);
  t.ReplyOk(command.reply_to, id);
}

void HandleCancelJob(Transition& t, const CancelJob& command) {
  if (const Request* request = FindRequest(t.state, command.request_id)) {
    if (request->kind != RequestKind::kCancel || request->job != command.job) {
      return RefuseReusedRequestId(t, command.reply_to, command.request_id);
    }
    return t.ReplyOk(command.reply_to, command.job);
  }
  auto it = t.state.jobs.find(command.job);
  if (it == t.state.jobs.end()) {
    return t.ReplyError(command.reply_to,
                        absl::NotFoundError(absl::StrCat("there is no job ", command.job)),
                        "JOB_NOT_FOUND");
  }
  Job& job = it->second;
  if (job.state == JobState::kCompleted || job.state == JobState::kFailed) {
    return t.ReplyError(command.reply_to,
                        absl::FailedPreconditionError(
                            absl::StrCat("job ", command.job, " has ended already: ", job.reason)),
                        "JOB_ENDED");
  }
  t.ReplyOk(command.reply_to, command.job);
  if (job.state == JobState::kCanceling || job.state == JobState::kCanceled) return;

  Remember(t, command.request_id, RequestKind::kCancel, command.job);
  const bool queued = job.state == JobState::kQueued;
  job.pending_failure.reset();
  job.reason = "CANCELED_BY_USER";
  job.message = command.reason;
  job.state = queued ? JobState::kCanceled : JobState::kCanceling;
  t.changed = t.look_at_queue = true;
  t.JobEvent(job, job.reason, command.reason);
  if (queued) {
    auto& queue = t.state.queue;
    queue.erase(std::find(queue.begin(), queue.end(), command.job));
    job.ended = t.now;
    t.SetCondition(job, kPlaced, false, job.reason, command.reason);
    t.SetCondition(job, kReady, false, job.reason, command.reason);
    t.SetCondition(job, kStopped, true, job.reason, "it never ran");
    return;
  }
  BeginStop(t, job, command.reason.empty() ? "canceled" : "canceled: " + command.reason);
  CheckAllExited(t, job);
}

}  // namespace fedshard::core
