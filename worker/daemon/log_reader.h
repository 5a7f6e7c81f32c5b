// Answers requests for trainers' log lines: the last ones, then new ones as they come. One thread
// for all requests; files are looked at a few times a second. Owned by the daemon; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "fedshard/v1/worker_service.pb.h"

namespace fedshard::daemon {

class LogReader {
 public:
  struct Callbacks {
    // False: no room now, the lines come again later.
    std::function<bool(const v1::LogLines&)> send;
    // Whether any of these ranks of the job (empty = all) still runs here.
    std::function<bool(const std::string& job, const std::set<int32_t>& ranks)> running;
  };

  LogReader(std::string log_directory, Callbacks callbacks);
  ~LogReader();

  void Read(const v1::ReadLogs& request);
  void Stop(uint64_t log_request);
  // Forgets all requests: whoever asked is gone.
  void StopAll();

 private:
  struct Request {
    std::string job;
    std::set<int32_t> ranks;
    int32_t tail_lines = 0;
    bool follow = false;
    bool started = false;
    std::map<int32_t, int64_t> offsets;  // Of the first byte not yet sent, by rank.
  };

  void Loop();
  // Sends what is new; true when the request is answered completely.
  bool Serve(uint64_t id, Request& request);
  std::map<int32_t, std::string> Files(const Request& request) const;

  const std::string log_directory_;
  const Callbacks callbacks_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::map<uint64_t, Request> requests_ GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace fedshard::daemon
