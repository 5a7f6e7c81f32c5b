#include "cli/client.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/exit_codes.h"
#include "common/ids.h"
#include "common/spec/error_trailer.h"
#include "fedshard/v1/error.pb.h"

namespace fedshard::cli {
namespace {

constexpr auto kCallTimeout = std::chrono::seconds(10);

int ExitCodeOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return kExitDone;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return kExitUsage;
    case grpc::StatusCode::NOT_FOUND:
      return kExitNotFound;
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return kExitRefused;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return kExitUnreachable;
    case grpc::StatusCode::CANCELLED:
      return kExitInterrupted;
    default:
      return kExitFailed;
  }
}

// A stream has no deadline: pings find out when the other machine is gone without a word.
grpc::ChannelArguments Keepalive() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // No limit: jobs may be quiet.
  return arguments;
}

// "shakespeare" and "jobs/shakespeare" both name the job.
std::string JobName(const std::string& id) {
  return absl::StartsWith(id, "jobs/") ? id : "jobs/" + id;
}

}  // namespace

Client::Client(const std::string& address)
    : address_(address),
      stub_(v1::JobService::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), Keepalive()))) {}

Outcome Client::Result(const grpc::Status& status, const grpc::ClientContext& context) const {
  if (status.ok()) return {};
  const int exit_code = ExitCodeOf(status.error_code());
  if (exit_code == kExitUnreachable) {
    return {exit_code, absl::StrCat("no answer from the coordinator at ", address_, ": ",
                                    status.error_message())};
  }
  std::string text = status.error_message();
  const auto& trailers = context.GetServerTrailingMetadata();
  v1::ErrorDetail detail;
  if (const auto found = trailers.find(kErrorTrailer);
      found != trailers.end() &&
      detail.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()))) {
    for (const v1::FieldViolation& violation : detail.violations()) {
      absl::StrAppend(&text, "\n  ", violation.field(), ": ", violation.description());
    }
    if (!detail.reason().empty()) absl::StrAppend(&text, " (", detail.reason(), ")");
  }
  return {exit_code, text};
}

template <typename CallFn>
Outcome Client::Call(CallFn call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  return Result(call(&context), context);
}

Outcome Client::Submit(const v1::JobSpec& spec, bool validate_only, v1::Job& job) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(validate_only);
  request.set_request_id(NewIncarnation());
  v1::SubmitJobResponse response;
  const Outcome outcome = Call(
      [&](grpc::ClientContext* context) { return stub_->SubmitJob(context, request, &response); });
  job = response.job();
  return outcome;
}

Outcome Client::GetJob(const std::string& id, v1::Job& job) {
  v1::GetJobRequest request;
  request.set_name(JobName(id));
  v1::GetJobResponse response;
  const Outcome outcome = Call(
      [&](grpc::ClientContext* context) { return stub_->GetJob(context, request, &response); });
  job = response.job();
  return outcome;
}

Outcome Client::CancelJob(const std::string& id, const std::string& reason, v1::Job& job) {
  v1::CancelJobRequest request;
  request.set_name(JobName(id));
  request.set_request_id(NewIncarnation());
  request.set_reason(reason);
  v1::CancelJobResponse response;
  const Outcome outcome = Call(
      [&](grpc::ClientContext* context) { return stub_->CancelJob(context, request, &response); });
  job = response.job();
  return outcome;
}

template <typename Response, typename Request, typename CallFn, typename Items>
Outcome Client::AllPages(Request request, CallFn call, const Items& (Response::*page)() const,
                         std::vector<typename Items::value_type>& all) {
  Response response;
  do {
    const Outcome outcome =
        Call([&](grpc::ClientContext* context) { return call(context, request, &response); });
    if (!outcome.ok()) return outcome;
    const Items& items = (response.*page)();
    all.insert(all.end(), items.begin(), items.end());
    request.set_page_token(response.next_page_token());
  } while (!response.next_page_token().empty());
  return {};
}

Outcome Client::ListJobs(std::vector<v1::Job>& jobs) {
  return AllPages<v1::ListJobsResponse>(
      v1::ListJobsRequest(), [this](auto... arguments) { return stub_->ListJobs(arguments...); },
      &v1::ListJobsResponse::jobs, jobs);
}

Outcome Client::ListNodes(std::vector<v1::Node>& nodes) {
  return AllPages<v1::ListNodesResponse>(
      v1::ListNodesRequest(), [this](auto... arguments) { return stub_->ListNodes(arguments...); },
      &v1::ListNodesResponse::nodes, nodes);
}

Outcome Client::ListGroups(const std::string& id, std::vector<v1::Group>& groups) {
  v1::ListGroupsRequest request;
  request.set_parent(JobName(id));
  return AllPages<v1::ListGroupsResponse>(
      request, [this](auto... arguments) { return stub_->ListGroups(arguments...); },
      &v1::ListGroupsResponse::groups, groups);
}

Outcome Client::ListRounds(const std::string& id, std::vector<v1::Round>& rounds) {
  v1::ListRoundsRequest request;
  request.set_parent(JobName(id));
  return AllPages<v1::ListRoundsResponse>(
      request, [this](auto... arguments) { return stub_->ListRounds(arguments...); },
      &v1::ListRoundsResponse::rounds, rounds);
}

template <typename Reader, typename Response>
Outcome Client::Stream(grpc::ClientContext& context, std::unique_ptr<Reader> reader,
                       const std::function<bool(const Response&)>& see) {
  {
    MutexLock lock(mu_);
    stream_ = &context;
    if (interrupted_) context.TryCancel();
  }
  Response response;
  bool enough = false;
  while (!enough && reader->Read(&response)) enough = !see(response);
  if (enough) context.TryCancel();
  const grpc::Status status = reader->Finish();
  {
    MutexLock lock(mu_);
    stream_ = nullptr;
    if (interrupted_) return {kExitInterrupted, "interrupted"};
  }
  return enough ? Outcome{} : Result(status, context);
}

Outcome Client::Watch(const std::string& id, const std::function<bool(const v1::Job&)>& see) {
  v1::WatchJobRequest request;
  request.set_name(JobName(id));
  grpc::ClientContext context;  // No deadline: a job may take months. Keepalive ends a dead stream.
  return Stream<grpc::ClientReader<v1::WatchJobResponse>, v1::WatchJobResponse>(
      context, stub_->WatchJob(&context, request),
      [&](const v1::WatchJobResponse& response) { return see(response.job()); });
}

Outcome Client::Logs(const v1::GetJobLogsRequest& request,
                     const std::function<void(const v1::GetJobLogsResponse&)>& see) {
  v1::GetJobLogsRequest named = request;
  named.set_name(JobName(request.name()));
  grpc::ClientContext context;
  if (!request.follow()) {
    context.set_deadline(std::chrono::system_clock::now() + 3 * kCallTimeout);
  }
  return Stream<grpc::ClientReader<v1::GetJobLogsResponse>, v1::GetJobLogsResponse>(
      context, stub_->GetJobLogs(&context, named), [&](const v1::GetJobLogsResponse& response) {
        see(response);
        return true;
      });
}

void Client::Interrupt() {
  MutexLock lock(mu_);
  interrupted_ = true;
  if (stream_ != nullptr) stream_->TryCancel();
}

}  // namespace fedshard::cli
