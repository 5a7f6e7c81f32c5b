#include "coordinator/rpc/job_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/check_spec.h"
#include "coordinator/rpc/errors.h"
#include "coordinator/rpc/job_logs.h"
#include "coordinator/rpc/names.h"
#include "coordinator/rpc/translate_cluster.h"
#include "coordinator/rpc/translate_job.h"
#include "coordinator/rpc/watch_job.h"
#include "coordinator/service/errors.h"

namespace fedshard::rpc {
namespace {

constexpr size_t kMaxReasonBytes = 1024;

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context,
                                 const Violations& violations) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(FinishWith(context, ToWire(violations)));
  return reactor;
}

// Runs `fill` on the loop thread; it returns the call's status.
template <typename Fill>
grpc::ServerUnaryReactor* RunQuery(grpc::CallbackServerContext* context, service::Service* service,
                                   Fill fill) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  service->Query([context, reactor, fill](const absl::Status& refusal, const service::View* view) {
    const absl::Status status = view == nullptr ? refusal : fill(*view);
    reactor->Finish(FinishWith(context, ToWire(status)));
  });
  return reactor;
}

absl::StatusOr<const core::Job*> FindJob(const service::View& view, const core::JobId& id) {
  const auto job = view.state.jobs.find(id);
  if (job != view.state.jobs.end()) return &job->second;
  return service::WithReason(absl::NotFoundError(absl::StrCat("there is no job ", id)),
                             service::kJobNotFound);
}

// Collects [begin, end) into a page: `add` appends one message and returns it, `key` gives the
// place to go on after.
template <typename Iterator, typename Add, typename Key>
std::string FillPage(Iterator begin, Iterator end, const Page& page, const std::string& collection,
                     Add add, Key key) {
  size_t count = 0;
  size_t bytes = 0;
  for (Iterator it = begin; it != end; ++it) {
    bytes += add(*it);
    if (++count < page.size && bytes < kMaxPageBytes) continue;
    return std::next(it) == end ? "" : PageToken(collection, key(*it));
  }
  return "";
}

// What the core said about a command, as a status with its reason.
absl::Status StatusOf(const core::Reply& reply) {
  return reply.status.ok() ? reply.status : service::WithReason(reply.status, reply.reason);
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceAdapter::SubmitJob(grpc::CallbackServerContext* context,
                                                       const v1::SubmitJobRequest* request,
                                                       v1::SubmitJobResponse* response) {
  Violations violations;
  CheckRequestId(request->request_id(), violations);
  CheckSpec(request->spec(), violations);
  if (!violations.empty()) return Refuse(context, violations);
  core::SubmitJob command;
  command.request_id = request->request_id();
  command.spec = SpecToCore(request->spec());
  command.validate_only = request->validate_only();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  service_->SubmitJob(std::move(command), [=](const core::Reply& reply, const service::View* view) {
    if (reply.status.ok() && request->validate_only()) {
      *response->mutable_job() = ValidatedJobToProto(request->spec(), reply.reason, reply.message);
    } else if (reply.status.ok()) {
      *response->mutable_job() = JobToProto(view->state.jobs.at(reply.job), *view);
    }
    reactor->Finish(FinishWith(context, ToWire(StatusOf(reply))));
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceAdapter::CancelJob(grpc::CallbackServerContext* context,
                                                       const v1::CancelJobRequest* request,
                                                       v1::CancelJobResponse* response) {
  Violations violations;
  core::CancelJob command;
  command.job = ParseJobName(request->name(), "name", violations);
  CheckRequestId(request->request_id(), violations);
  if (request->reason().size() > kMaxReasonBytes) {
    violations.Add("reason", absl::StrCat("at most ", kMaxReasonBytes, " bytes"));
  }
  if (!violations.empty()) return Refuse(context, violations);
  command.request_id = request->request_id();
  command.reason = request->reason();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  service_->CancelJob(std::move(command), [=](const core::Reply& reply, const service::View* view) {
    if (reply.status.ok()) {
      *response->mutable_job() = JobToProto(view->state.jobs.at(reply.job), *view);
    }
    reactor->Finish(FinishWith(context, ToWire(StatusOf(reply))));
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceAdapter::GetJob(grpc::CallbackServerContext* context,
                                                    const v1::GetJobRequest* request,
                                                    v1::GetJobResponse* response) {
  Violations violations;
  const core::JobId id = ParseJobName(request->name(), "name", violations);
  if (!violations.empty()) return Refuse(context, violations);
  return RunQuery(context, service_, [=](const service::View& view) -> absl::Status {
    const auto job = FindJob(view, id);
    if (!job.ok()) return job.status();
    *response->mutable_job() = JobToProto(**job, view);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceAdapter::ListJobs(grpc::CallbackServerContext* context,
                                                      const v1::ListJobsRequest* request,
                                                      v1::ListJobsResponse* response) {
  Violations violations;
  const Page page = ParsePage(request->page_size(), request->page_token(), "jobs", violations);
  if (!violations.empty()) return Refuse(context, violations);
  return RunQuery(context, service_, [=](const service::View& view) {
    const auto& jobs = view.state.jobs;
    response->set_next_page_token(FillPage(
        jobs.upper_bound(page.after), jobs.end(), page, "jobs",
        [&](const auto& entry) {
          *response->add_jobs() = JobToProto(entry.second, view);
          return response->jobs().rbegin()->ByteSizeLong();
        },
        [](const auto& entry) { return entry.first; }));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceAdapter::ListNodes(grpc::CallbackServerContext* context,
                                                       const v1::ListNodesRequest* request,
                                                       v1::ListNodesResponse* response) {
  Violations violations;
  const Page page = ParsePage(request->page_size(), request->page_token(), "nodes", violations);
  if (!violations.empty()) return Refuse(context, violations);
  return RunQuery(context, service_, [=](const service::View& view) {
    const auto& nodes = view.state.nodes;
    response->set_next_page_token(FillPage(
        nodes.upper_bound(page.after), nodes.end(), page, "nodes",
        [&](const auto& entry) {
          *response->add_nodes() = NodeToProto(entry.second, view.now.steady_us);
          return response->nodes().rbegin()->ByteSizeLong();
        },
        [](const auto& entry) { return entry.first; }));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceAdapter::ListGroups(grpc::CallbackServerContext* context,
                                                        const v1::ListGroupsRequest* request,
                                                        v1::ListGroupsResponse* response) {
  Violations violations;
  const core::JobId id = ParseJobName(request->parent(), "parent", violations);
  const std::string collection = request->parent() + "/groups";
  const Page page = ParsePage(request->page_size(), request->page_token(), collection, violations);
  int64_t after = -1;
  if (!page.after.empty() && !absl::SimpleAtoi(page.after, &after)) {
    violations.Add("page_token", "is not a token of this list");
  }
  if (!violations.empty()) return Refuse(context, violations);
  return RunQuery(context, service_, [=](const service::View& view) -> absl::Status {
    const auto job = FindJob(view, id);
    if (!job.ok()) return job.status();
    const auto& groups = (*job)->groups;
    const auto begin = std::find_if(groups.begin(), groups.end(),
                                    [&](const core::Group& group) { return group.index > after; });
    response->set_next_page_token(FillPage(
        begin, groups.end(), page, collection,
        [&](const core::Group& group) {
          *response->add_groups() = GroupToProto(id, group);
          return response->groups().rbegin()->ByteSizeLong();
        },
        [](const core::Group& group) { return absl::StrCat(group.index); }));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceAdapter::ListRounds(grpc::CallbackServerContext* context,
                                                        const v1::ListRoundsRequest* request,
                                                        v1::ListRoundsResponse* response) {
  Violations violations;
  const core::JobId id = ParseJobName(request->parent(), "parent", violations);
  const std::string collection = request->parent() + "/rounds";
  const Page page = ParsePage(request->page_size(), request->page_token(), collection, violations);
  int64_t after = -1;
  if (!page.after.empty() && !absl::SimpleAtoi(page.after, &after)) {
    violations.Add("page_token", "is not a token of this list");
  }
  if (!violations.empty()) return Refuse(context, violations);
  return RunQuery(context, service_, [=](const service::View& view) -> absl::Status {
    const auto job = FindJob(view, id);
    if (!job.ok()) return job.status();
    const auto& rounds = (*job)->rounds;
    const auto begin = std::find_if(rounds.begin(), rounds.end(),
                                    [&](const core::Round& round) { return round.number > after; });
    response->set_next_page_token(FillPage(
        begin, rounds.end(), page, collection,
        [&](const core::Round& round) {
          *response->add_rounds() = RoundToProto(id, round, view.now.steady_us);
          return response->rounds().rbegin()->ByteSizeLong();
        },
        [](const core::Round& round) { return absl::StrCat(round.number); }));
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobServiceAdapter::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return WatchJobCall::Start(context, service_, *request);
}

grpc::ServerWriteReactor<v1::GetJobLogsResponse>* JobServiceAdapter::GetJobLogs(
    grpc::CallbackServerContext* context, const v1::GetJobLogsRequest* request) {
  return JobLogsCall::Start(context, service_, *request);
}

}  // namespace fedshard::rpc
