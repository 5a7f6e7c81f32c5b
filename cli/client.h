// JobService as the commands use it: every call has a deadline, and errors come as one message with
// an exit code. Thread-safe. Owned by the command.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "fedshard/v1/job_service.grpc.pb.h"

namespace fedshard::cli {

struct Outcome {
  int exit_code = 0;
  std::string error;  // For people; empty when ok.
  bool ok() const { return exit_code == 0; }
};

class Client {
 public:
  explicit Client(const std::string& address);

  Outcome Submit(const v1::JobSpec& spec, bool validate_only, v1::Job& job);
  Outcome GetJob(const std::string& id, v1::Job& job);
  Outcome CancelJob(const std::string& id, const std::string& reason, v1::Job& job);
  // All pages.
  Outcome ListJobs(std::vector<v1::Job>& jobs);
  Outcome ListNodes(std::vector<v1::Node>& nodes);
  Outcome ListGroups(const std::string& id, std::vector<v1::Group>& groups);
  Outcome ListRounds(const std::string& id, std::vector<v1::Round>& rounds);
  // Calls `see` with the job now and at each change, until it has ended, `see` returns false, or
  // Interrupt().
  Outcome Watch(const std::string& id, const std::function<bool(const v1::Job&)>& see);
  Outcome Logs(const v1::GetJobLogsRequest& request,
               const std::function<void(const v1::GetJobLogsResponse&)>& see);

  // Ends a Watch or Logs under way, and all later ones, from any thread.
  void Interrupt();

 private:
  Outcome Result(const grpc::Status& status, const grpc::ClientContext& context) const;
  template <typename CallFn>
  Outcome Call(CallFn call);
  // Appends the items of all pages, which `page` takes from a response.
  template <typename Response, typename Request, typename CallFn, typename Items>
  Outcome AllPages(Request request, CallFn call, const Items& (Response::*page)() const,
                   std::vector<typename Items::value_type>& all);
  template <typename Reader, typename Response>
  Outcome Stream(grpc::ClientContext& context, std::unique_ptr<Reader> reader,
                 const std::function<bool(const Response&)>& see);

  const std::string address_;
  const std::unique_ptr<v1::JobService::Stub> stub_;
  Mutex mu_;
  bool interrupted_ GUARDED_BY(mu_) = false;
  grpc::ClientContext* stream_ GUARDED_BY(mu_) = nullptr;
};

}  // namespace fedshard::cli
