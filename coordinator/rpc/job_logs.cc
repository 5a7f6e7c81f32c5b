#include "coordinator/rpc/job_logs.h"

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/names.h"
#include "coordinator/rpc/translate_job.h"

namespace fedshard::rpc {
namespace {

constexpr size_t kMaxQueuedLines = 100'000;
constexpr int32_t kDefaultTailLines = 100;
constexpr int32_t kMaxTailLines = 10'000;

}  // namespace

JobLogsCall* JobLogsCall::Start(grpc::CallbackServerContext* context, service::Service* service,
                                const v1::GetJobLogsRequest& request) {
  const auto call = std::make_shared<JobLogsCall>(context, service);
  call->Begin(call);
  Violations violations;
  service::LogRequest logs;
  logs.job = ParseJobName(request.name(), "name", violations);
  logs.ranks.assign(request.ranks().begin(), request.ranks().end());
  logs.follow = request.follow();
  logs.tail_lines = request.tail_lines() == 0 ? kDefaultTailLines : request.tail_lines();
  if (logs.tail_lines < 0 || logs.tail_lines > kMaxTailLines) {
    violations.Add("tail_lines", absl::StrCat("must be 0 to ", kMaxTailLines));
  }
  if (violations.empty()) {
    service->ReadLogs(std::move(logs), call);
  } else {
    call->End(ToWire(violations));
  }
  return call.get();
}

JobLogsCall::JobLogsCall(grpc::CallbackServerContext* context, service::Service* service)
    : ResponseStream(context, kMaxQueuedLines), service_(service) {}

bool JobLogsCall::Take(const core::NodeId& node, const std::vector<service::LogLine>& lines) {
  for (const service::LogLine& line : lines) {
    v1::GetJobLogsResponse response;
    response.set_rank(line.rank);
    response.set_node(node);
    *response.mutable_time() = TimeToProto(line.wall_us);
    response.set_line(line.line);
    if (!Push(std::move(response))) return false;
  }
  return true;
}

void JobLogsCall::EndOfLogs(const absl::Status& status) { End(ToWire(status)); }

void JobLogsCall::Left() { service_->StopLogs(shared_from_this()); }

}  // namespace fedshard::rpc
