// The client against a JobService in the same process: errors become exit codes and messages with
// their fields, pages are followed, streams can be interrupted.
#include "cli/client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "cli/exit_codes.h"
#include "fedshard/v1/error.pb.h"

namespace fedshard::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FakeService : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override {
    if (status_.ok()) response->mutable_job()->set_name(request->name());
    v1::ErrorDetail detail;
    detail.set_reason("BECAUSE");
    v1::FieldViolation& violation = *detail.add_violations();
    violation.set_field("mesh.shards");
    violation.set_description("too many");
    context->AddTrailingMetadata("fedshard-error-bin", detail.SerializeAsString());
    return status_;
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    const int page = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    response->add_jobs()->set_name("jobs/" + std::to_string(page));
    if (page < 2) response->set_next_page_token(std::to_string(page + 1));
    return grpc::Status::OK;
  }
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    EXPECT_EQ(request->request_id().size(), 32u);
    response->mutable_job()->set_name("jobs/" + request->spec().id());
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    v1::WatchJobResponse response;
    response.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
    while (!context->IsCancelled() && writer->Write(response)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return grpc::Status::CANCELLED;
  }
  grpc::Status status_;
};

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<Client>("127.0.0.1:" + std::to_string(port));
  }
  ~ClientTest() override { server_->Shutdown(std::chrono::system_clock::now()); }
  FakeService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, ErrorsCarryCodeReasonAndFields) {
  const std::vector<std::pair<grpc::StatusCode, int>> cases = {
      {grpc::StatusCode::INVALID_ARGUMENT, kExitUsage},
      {grpc::StatusCode::NOT_FOUND, kExitNotFound},
      {grpc::StatusCode::ALREADY_EXISTS, kExitRefused},
      {grpc::StatusCode::FAILED_PRECONDITION, kExitRefused},
      {grpc::StatusCode::UNAVAILABLE, kExitUnreachable},
      {grpc::StatusCode::INTERNAL, kExitFailed}};
  for (const auto& [code, exit_code] : cases) {
    service_.status_ = grpc::Status(code, "no");
    v1::Job job;
    EXPECT_EQ(client_->GetJob("a", job).exit_code, exit_code);
  }
  service_.status_ = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no");
  v1::Job job;
  EXPECT_THAT(client_->GetJob("a", job).error,
              AllOf(HasSubstr("mesh.shards: too many"), HasSubstr("BECAUSE")));
}

TEST_F(ClientTest, NamesJobsEitherWay) {
  v1::Job job;
  ASSERT_TRUE(client_->GetJob("a", job).ok());
  EXPECT_EQ(job.name(), "jobs/a");
  ASSERT_TRUE(client_->GetJob("jobs/a", job).ok());
  EXPECT_EQ(job.name(), "jobs/a");
}

TEST_F(ClientTest, FollowsPages) {
  std::vector<v1::Job> jobs;
  ASSERT_TRUE(client_->ListJobs(jobs).ok());
  EXPECT_EQ(jobs.size(), 3u);
}

TEST_F(ClientTest, SubmitSendsARequestId) {
  v1::JobSpec spec;
  spec.set_id("x");
  v1::Job job;
  ASSERT_TRUE(client_->Submit(spec, false, job).ok());
  EXPECT_EQ(job.name(), "jobs/x");
}

TEST_F(ClientTest, WatchEndsWhenInterruptedOrSatisfied) {
  std::thread other;
  bool started = false;
  const Outcome outcome = client_->Watch("a", [&](const v1::Job&) {
    if (!started) other = std::thread([&] { client_->Interrupt(); });
    started = true;
    return true;
  });
  other.join();
  EXPECT_EQ(outcome.exit_code, kExitInterrupted);
  Client fresh("127.0.0.1:1");
  EXPECT_EQ(fresh.Watch("a", [](const v1::Job&) { return true; }).exit_code, kExitUnreachable);
}

}  // namespace
}  // namespace fedshard::cli
