// Service: what comes from nodes, and what the core's effects do.
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/service/errors.h"
#include "coordinator/service/job_end.h"
#include "coordinator/service/service.h"

namespace fedshard::service {

void Service::Connect(std::shared_ptr<NodeStream> stream, NodeRegistration registration) {
  const bool posted = inbox_.Post([this, stream, registration = std::move(registration)] {
    HandleConnect(stream, registration);
  });
  if (!posted) stream->Close(InboxRefusal());
}

void Service::HandleConnect(const std::shared_ptr<NodeStream>& stream,
                            const NodeRegistration& registration) {
  if (const absl::Status refusal = Refusal(); !refusal.ok()) return stream->Close(refusal);
  const core::NodeId& node = registration.node.node;
  const std::string& incarnation = registration.node.incarnation;
  if (const absl::Status status = sessions_.Prepare(node, incarnation); !status.ok()) {
    return stream->Close(status);
  }
  if (!Apply(registration.node)) return stream->Close(storage_error_);
  const auto known = core_.state().nodes.find(node);
  if (known == core_.state().nodes.end() || known->second.incarnation != incarnation) {
    sessions_.Discard(node, incarnation);
    return stream->Close(WithReason(
        absl::AbortedError(absl::StrCat("a newer incarnation of ", node, " has registered")),
        kStaleIncarnation));
  }
  sessions_.Attach(registration, stream);
  stream->ReadNext();
}

void Service::Heartbeat(std::shared_ptr<NodeStream> stream, uint64_t last_directive) {
  const bool posted = inbox_.Post([this, stream, last_directive] {
    if (!sessions_.IsCurrent(stream.get())) return;  // Closed already.
    const auto [node, incarnation] = sessions_.OwnerOf(stream.get());
    if (!Apply(core::NodeHeartbeat{node, incarnation})) return;
    if (!sessions_.IsCurrent(stream.get())) return;
    sessions_.Heartbeat(stream.get(), last_directive);
    stream->ReadNext();
  });
  if (!posted) stream->Close(InboxRefusal());
}

void Service::Report(std::shared_ptr<NodeStream> stream, uint64_t sequence, NodeReport report) {
  const bool posted = inbox_.Post([this, stream, sequence, report = std::move(report)]() mutable {
    if (!sessions_.IsCurrent(stream.get())) return;
    const NodeSessions::Admission admission = sessions_.Admit(stream.get(), sequence);
    if (admission == NodeSessions::Admission::kRefused) return;
    if (admission == NodeSessions::Admission::kNew) HandleReport(stream, std::move(report));
    if (sessions_.IsCurrent(stream.get())) stream->ReadNext();
  });
  if (!posted) stream->Close(InboxRefusal());
}

void Service::HandleReport(const std::shared_ptr<NodeStream>& stream, NodeReport report) {
  const auto [node, incarnation] = sessions_.OwnerOf(stream.get());
  std::visit(
      [&, node = node, incarnation = incarnation](auto& body) {
        using Body = std::decay_t<decltype(body)>;
        if constexpr (std::is_same_v<Body, LogLines>) {
          logs_.Lines(node, body);
        } else {
          body.from.node = node;
          body.from.incarnation = incarnation;
          if constexpr (std::is_same_v<Body, StepReport>) {
            HandleSteps(body);
          } else if (Apply(body)) {
            watchers_.Progressed(body.from.job);
          }
        }
      },
      report);
}

void Service::HandleSteps(const StepReport& report) {
  if (!telemetry_.Report(core_.state(), report, clock_->Now().steady_us)) return;
  const core::Job& job = core_.state().jobs.at(report.from.job);
  step_files_.Write(report.from.job, report.from.rank / job.spec.mesh.group_size(),
                    job.committed_steps == job.spec.first_step, report);
  const int32_t group = report.from.rank / job.spec.mesh.group_size();
  for (const core::Event& event : outliers_.Look(report.from.job, group, report.steps)) {
    Publish(event);
  }
  watchers_.Progressed(report.from.job);
}

void Service::Disconnected(std::shared_ptr<NodeStream> stream) {
  inbox_.Post([this, stream] {
    if (!sessions_.IsCurrent(stream.get())) return;
    const auto [node, incarnation] = sessions_.OwnerOf(stream.get());
    sessions_.Detach(stream.get());
    if (Refusal().ok()) Apply(core::NodeDisconnected{node, incarnation});
  });
}

bool Service::Apply(const core::Command& command) {
  if (!storage_error_.ok()) return false;
  const core::Effects effects = core_.Apply(command, clock_->Now());
  if (!effects.records.empty()) {
    if (const absl::Status status = journal_->Append(effects.records); !status.ok()) {
      StorageFailed(status);
      return false;
    }
  }
  Release(effects);
  return true;
}

void Service::StorageFailed(const absl::Status& status) {
  LogError(absl::StrCat("the journal failed, all requests are refused from now on: ",
                        status.ToString()));
  storage_error_ = WithReason(absl::InternalError(absl::StrCat(
                                  "the coordinator cannot store its state: ", status.message())),
                              kStorageError);
  healthy_ = false;
  CloseEverything(storage_error_);
}

void Service::Release(const core::Effects& effects) {
  for (const core::Reply& reply : effects.replies) {
    auto answer = answers_.extract(reply.reply_to);
    if (answer.empty()) continue;
    const View view = Now();
    answer.mapped()(reply, &view);
  }
  for (const core::Directive& directive : effects.directives) ReleaseDirective(directive);
  for (const core::DropScope& drop : effects.dropped_scopes) {
    rendezvous_.DropScope(drop.job, drop.scope);
  }
  wake_at_us_ = effects.wake_at_us;
  for (const core::Event& event : effects.events) Publish(event);
}

void Service::ReleaseDirective(const core::Directive& directive) {
  const auto send = [&](NodeDirective body) {
    sessions_.Send(directive.node, directive.incarnation, std::move(body));
  };
  if (const auto* start = std::get_if<core::StartRanks>(&directive.body)) {
    rendezvous_.OpenScope(start->job, absl::StrCat("g", start->generation));
    rendezvous_.OpenScope(start->job, absl::StrCat("f", start->federation_generation));
    send(*start);
    logs_.RanksStarted(core_.state(), start->job, directive.node);
  } else if (const auto* stop = std::get_if<core::StopRanks>(&directive.body)) {
    send(*stop);
  } else {
    const auto& direct = std::get<core::DirectRanks>(directive.body);
    if (const auto* decision = std::get_if<core::RoundDecision>(&direct.directive)) {
      telemetry_.Decided(core_.state().jobs.at(direct.job), *decision);
    }
    send(direct);
  }
}

void Service::Publish(const core::Event& event) {
  std::string line;
  if (!event.job.empty()) absl::StrAppend(&line, "job ", event.job, ": ");
  if (!event.node.empty()) absl::StrAppend(&line, "node ", event.node, ": ");
  LogInfo(absl::StrCat(line, event.reason, ": ", event.message));
  if (event.reason == "NODE_LOST" || event.reason == "NODE_RESTARTED") {
    if (!event.node.empty()) logs_.NodeGone(event.node);
  }
  if (event.job.empty()) return;
  watchers_.Changed(event.job);
  const auto job = core_.state().jobs.find(event.job);
  if (job == core_.state().jobs.end() || !HasEnded(job->second)) return;
  step_files_.Close(event.job);
  outliers_.Forget(event.job);
  logs_.JobEnded(event.job, clock_->Now().steady_us);
}

}  // namespace fedshard::service
