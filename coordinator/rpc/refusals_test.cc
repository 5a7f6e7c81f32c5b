// Proves what the server refuses and how it says so, that requests may be repeated, that lists have
// pages, that a second server cannot take the port, and that shutting down ends open streams at
// once.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "common/testing/eventually.h"
#include "common/testing/status_matchers.h"
#include "coordinator/rpc/listen_address.h"
#include "coordinator/rpc/server.h"
#include "coordinator/rpc/testing/fake_worker.h"
#include "coordinator/rpc/testing/test_coordinator.h"
#include "coordinator/storage/faulty_journal.h"

namespace fedshard::rpc {
namespace {

using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::StatusIs;

struct Answer {
  grpc::Status status;
  v1::ErrorDetail detail;
  v1::Job job;
};

Answer Submit(TestCoordinator& coordinator, const v1::SubmitJobRequest& request) {
  Call call;
  v1::SubmitJobResponse response;
  Answer answer;
  answer.status = coordinator.jobs().SubmitJob(&call.context, request, &response);
  answer.detail = call.Detail();
  answer.job = response.job();
  return answer;
}

v1::SubmitJobRequest SubmitRequest(const std::string& id, const std::string& request_id = "") {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = TestSpec(id);
  request.set_request_id(request_id);
  return request;
}

TEST(RefusalsTest, ABadSpecIsRefusedByField) {
  TestCoordinator coordinator;
  v1::SubmitJobRequest request = SubmitRequest("Not An Id");
  const Answer answer = Submit(coordinator, request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answer.detail.reason(), "INVALID_FIELD");
  ASSERT_GE(answer.detail.violations_size(), 1);
  EXPECT_EQ(answer.detail.violations(0).field(), "spec.id");
  EXPECT_THAT(answer.status.error_message(), HasSubstr("spec.id: "));
}

TEST(RefusalsTest, ARepeatedRequestGetsTheFirstAnswerAndAnotherJobIsRefused) {
  TestCoordinator coordinator;
  const Answer first = Submit(coordinator, SubmitRequest("demo", "r1"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(first.job.reason(), "WAITING_FOR_SLOTS");
  const Answer again = Submit(coordinator, SubmitRequest("demo", "r1"));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.job.uid(), first.job.uid());
  const Answer other = Submit(coordinator, SubmitRequest("demo", "r2"));
  EXPECT_EQ(other.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(other.detail.reason(), "JOB_EXISTS");
}

TEST(RefusalsTest, ValidateOnlyQueuesNothing) {
  TestCoordinator coordinator;
  v1::SubmitJobRequest request = SubmitRequest("demo");
  request.set_validate_only(true);
  const Answer answer = Submit(coordinator, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.job.name(), "jobs/demo");
  EXPECT_EQ(answer.job.reason(), "WAITING_FOR_SLOTS");
  Call call;
  v1::GetJobRequest get;
  get.set_name("jobs/demo");
  v1::GetJobResponse response;
  EXPECT_EQ(coordinator.jobs().GetJob(&call.context, get, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(call.Detail().reason(), "JOB_NOT_FOUND");
}

TEST(RefusalsTest, ATenMegabyteSubmitIsRefusedWithTheLimit) {
  TestCoordinator coordinator;
  v1::SubmitJobRequest request = SubmitRequest("demo");
  request.mutable_spec()->mutable_model()->set_config_json(std::string(10 << 20, ' '));
  const Answer answer = Submit(coordinator, request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("vs. 4194304"));
  EXPECT_TRUE(Submit(coordinator, SubmitRequest("demo")).status.ok());
}

TEST(RefusalsTest, GarbageIsRefusedAndHurtsNobody) {
  TestCoordinator coordinator;
  grpc::GenericStub stub(coordinator.channel());
  for (const std::string method :
       {"/fedshard.v1.JobService/SubmitJob", "/fedshard.v1.JobService/WatchJob",
        "/fedshard.v1.WorkerService/Connect", "/fedshard.v1.JobService/NoSuchMethod"}) {
    Call call;
    grpc::CompletionQueue queue;
    grpc::Slice slice("\xff\xff\xff\xff\xff garbage");
    grpc::ByteBuffer garbage(&slice, 1);
    const auto rpc = stub.PrepareCall(&call.context, method, &queue);
    void* tag = nullptr;
    bool ok = false;
    rpc->StartCall(&tag);
    queue.Next(&tag, &ok);
    rpc->Write(garbage, &tag);
    queue.Next(&tag, &ok);
    rpc->WritesDone(&tag);
    queue.Next(&tag, &ok);
    grpc::Status status;
    rpc->Finish(&status, &tag);
    queue.Next(&tag, &ok);
    // The stream of a worker that leaves before it registers ends well.
    const bool may_be_ok = method == "/fedshard.v1.WorkerService/Connect";
    EXPECT_TRUE(may_be_ok || !status.ok()) << method;
  }
  EXPECT_TRUE(Submit(coordinator, SubmitRequest("demo")).status.ok());
}

TEST(RefusalsTest, NamesPagesAndUnknownJobsAreChecked) {
  TestCoordinator coordinator;
  {
    Call call;
    v1::GetJobRequest request;
    request.set_name("demo");
    v1::GetJobResponse response;
    EXPECT_EQ(coordinator.jobs().GetJob(&call.context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(call.Detail().violations(0).field(), "name");
  }
  {
    Call call;
    v1::ListJobsRequest request;
    request.set_page_size(-1);
    request.set_page_token("nonsense");
    v1::ListJobsResponse response;
    EXPECT_EQ(coordinator.jobs().ListJobs(&call.context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(call.Detail().violations_size(), 2);
  }
  {
    Call call;
    v1::WatchJobRequest request;
    request.set_name("jobs/none");
    v1::WatchJobResponse response;
    const auto stream = coordinator.jobs().WatchJob(&call.context, request);
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(call.Detail().reason(), "JOB_NOT_FOUND");
  }
  {
    Call call;
    v1::GetJobLogsRequest request;
    request.set_name("jobs/none");
    request.set_tail_lines(-1);
    v1::GetJobLogsResponse response;
    const auto stream = coordinator.jobs().GetJobLogs(&call.context, request);
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(call.Detail().violations(0).field(), "tail_lines");
  }
}

TEST(RefusalsTest, ListsHavePages) {
  TestCoordinator coordinator;
  for (const char* id : {"c", "a", "b"}) {
    ASSERT_TRUE(Submit(coordinator, SubmitRequest(id)).status.ok());
  }
  std::vector<std::string> names;
  v1::ListJobsRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    Call call;
    v1::ListJobsResponse response;
    ASSERT_TRUE(coordinator.jobs().ListJobs(&call.context, request, &response).ok());
    for (const v1::Job& job : response.jobs()) names.push_back(job.name());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 2);
  EXPECT_THAT(names, ElementsAre("jobs/a", "jobs/b", "jobs/c"));
}

TEST(RefusalsTest, NodesAreListedWithTheirSlots) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 3);
  ASSERT_TRUE(worker.Connect());
  Call call;
  v1::ListNodesResponse response;
  ASSERT_TRUE(coordinator.jobs().ListNodes(&call.context, {}, &response).ok());
  ASSERT_EQ(response.nodes_size(), 1);
  EXPECT_EQ(response.nodes(0).name(), "nodes/node-0");
  EXPECT_EQ(response.nodes(0).state(), v1::NODE_STATE_ACTIVE);
  EXPECT_EQ(response.nodes(0).slots(), 3);
  EXPECT_EQ(response.nodes(0).slots_used(), 0);
}

TEST(RefusalsTest, AStreamBeginsWithAValidRegistration) {
  TestCoordinator coordinator;
  {
    FakeWorker worker(coordinator.workers(), "node-0", "w1", 0);
    EXPECT_FALSE(worker.Connect());
    EXPECT_EQ(worker.WaitForEnd().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(worker.Detail().violations(0).field(), "register.slots");
  }
  Call call;
  const auto stream = coordinator.workers().Connect(&call.context);
  v1::ConnectRequest heartbeat;
  heartbeat.mutable_heartbeat();
  stream->Write(heartbeat);
  v1::ConnectResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(RefusalsTest, ANewIncarnationEndsTheOldStreamAndKeepsItOut) {
  TestCoordinator coordinator;
  FakeWorker old_worker(coordinator.workers(), "node-0", "w1", 1);
  ASSERT_TRUE(old_worker.Connect());
  FakeWorker new_worker(coordinator.workers(), "node-0", "w2", 1);
  ASSERT_TRUE(new_worker.Connect());
  EXPECT_EQ(old_worker.WaitForEnd().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(old_worker.Detail().reason(), "STALE_INCARNATION");
  EXPECT_FALSE(old_worker.Connect());
  EXPECT_EQ(old_worker.WaitForEnd().error_code(), grpc::StatusCode::ABORTED);
  new_worker.Heartbeat();
  v1::ConnectResponse response;
  ASSERT_TRUE(new_worker.Read(&response));
  EXPECT_TRUE(response.has_acknowledge());
}

TEST(RefusalsTest, ASecondServerOnThePortIsRefused) {
  TestCoordinator coordinator;
  Server second({coordinator.address(), false}, &coordinator.service(), &coordinator.clock());
  EXPECT_THAT(second.Start(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("address already in use")));
  EXPECT_TRUE(Submit(coordinator, SubmitRequest("demo")).status.ok());
}

TEST(RefusalsTest, ABrokenJournalRefusesEverythingWithoutAnAnswerThatIsNotStored) {
  auto inner = std::make_unique<storage::MemoryJournal>();
  auto journal = std::make_unique<storage::FaultyJournal>(*inner);
  journal->FailAppends(1, absl::DataLossError("disk full"), storage::AppendFault::kNothingWritten);
  TestCoordinator coordinator({}, std::move(journal));
  ASSERT_TRUE(Submit(coordinator, SubmitRequest("one")).status.ok());
  const Answer lost = Submit(coordinator, SubmitRequest("two"));
  EXPECT_EQ(lost.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(lost.detail.reason(), "STORAGE_ERROR");
  EXPECT_THAT(lost.status.error_message(), HasSubstr("disk full"));
  Call call;
  v1::GetJobRequest request;
  request.set_name("jobs/one");
  v1::GetJobResponse response;
  EXPECT_FALSE(coordinator.jobs().GetJob(&call.context, request, &response).ok());
  EXPECT_EQ(call.Detail().reason(), "STORAGE_ERROR");
  EXPECT_FALSE(coordinator.service().healthy());
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 1);
  EXPECT_FALSE(worker.Connect());
  EXPECT_EQ(worker.WaitForEnd().error_code(), grpc::StatusCode::INTERNAL);
  coordinator.Stop();
}

TEST(RefusalsTest, HealthIsServed) {
  TestCoordinator coordinator;
  grpc::GenericStub stub(coordinator.channel());
  Call call;
  grpc::CompletionQueue queue;
  grpc::ByteBuffer empty;
  {
    grpc::Slice nothing("");
    empty = grpc::ByteBuffer(&nothing, 1);
  }
  const auto rpc =
      stub.PrepareUnaryCall(&call.context, "/grpc.health.v1.Health/Check", empty, &queue);
  rpc->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  rpc->Finish(&answer, &status, &tag);
  queue.Next(&tag, &ok);
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice slice;
  ASSERT_TRUE(answer.DumpToSingleSlice(&slice).ok());
  // HealthCheckResponse{status: SERVING}.
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()), "\x08\x01");
}

TEST(RefusalsTest, ShuttingDownEndsOpenStreamsAtOnce) {
  TestCoordinator coordinator;
  FakeWorker worker(coordinator.workers(), "node-0", "w1", 4);
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(Submit(coordinator, SubmitRequest("demo")).status.ok());
  const v1::ConnectResponse start = worker.NextDirective();
  ASSERT_TRUE(start.has_start_ranks());
  Call watch_call;
  v1::WatchJobRequest watch;
  watch.set_name("jobs/demo");
  const auto watcher = coordinator.jobs().WatchJob(&watch_call.context, watch);
  v1::WatchJobResponse shown;
  ASSERT_TRUE(watcher->Read(&shown));
  Call logs_call;
  v1::GetJobLogsRequest logs;
  logs.set_name("jobs/demo");
  logs.set_follow(true);
  const auto reader = coordinator.jobs().GetJobLogs(&logs_call.context, logs);

  const auto begin = std::chrono::steady_clock::now();
  coordinator.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(worker.WaitForEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(worker.Detail().reason(), "SHUTTING_DOWN");
  while (watcher->Read(&shown)) {
  }
  EXPECT_EQ(watcher->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::GetJobLogsResponse line;
  while (reader->Read(&line)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(ListenAddressTest, IsParsedOrRefusedWithTheReason) {
  const auto v4 = ParseListenAddress("127.0.0.1:70");
  ASSERT_TRUE(v4.ok());
  EXPECT_TRUE(v4->IsLoopback());
  EXPECT_EQ(v4->port, 70);
  const auto v6 = ParseListenAddress("[::]:0");
  ASSERT_TRUE(v6.ok());
  EXPECT_FALSE(v6->IsLoopback());
  EXPECT_EQ(v6->ToString(), "[::]:0");
  for (const char* bad : {"", "host", ":1", "::1:70", "host:", "host:x", "host:65536", "host:-1"}) {
    EXPECT_THAT(ParseListenAddress(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

}  // namespace
}  // namespace fedshard::rpc
