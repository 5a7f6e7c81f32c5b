#include "worker/daemon/log_reader.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/utf8.h"
#include "worker/supervisor/rank_log.h"

namespace fedshard::daemon {
namespace {

constexpr int kLinesPerMessage = 200;
constexpr int64_t kMaxTailBytes = 1 << 20;
constexpr auto kPeriod = std::chrono::milliseconds(200);

// Where the last `lines` lines of the file begin, looking back at most kMaxTailBytes.
int64_t TailOffset(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t size = file ? static_cast<int64_t>(file.tellg()) : 0;
  const int64_t from = std::max<int64_t>(0, size - kMaxTailBytes);
  file.seekg(from);
  std::string text(static_cast<size_t>(size - from), '\0');
  file.read(text.data(), size - from);
  int64_t at = size - from;
  for (int found = 0; at > 0; --at) {
    if (text[at - 1] == '\n' && at != size - from && ++found == lines) break;
  }
  return from + at;
}

// Complete lines from `offset` on, at most `limit`; moves the offset behind them.
std::vector<std::string> ReadLines(const std::string& path, int64_t& offset, int limit) {
  std::vector<std::string> lines;
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset);
  for (std::string line; limit > 0 && std::getline(file, line) && !file.eof(); --limit) {
    offset += static_cast<int64_t>(line.size()) + 1;
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

LogReader::LogReader(std::string log_directory, Callbacks callbacks)
    : log_directory_(std::move(log_directory)), callbacks_(std::move(callbacks)) {
  thread_ = std::thread([this] { Loop(); });
}

LogReader::~LogReader() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void LogReader::Read(const v1::ReadLogs& request) {
  MutexLock lock(mu_);
  requests_[request.log_request()] = {request.job(),
                                      {request.ranks().begin(), request.ranks().end()},
                                      request.tail_lines(),
                                      request.follow(),
                                      false,
                                      {}};
  changed_.NotifyAll();
}

void LogReader::Stop(uint64_t log_request) {
  MutexLock lock(mu_);
  requests_.erase(log_request);
}

void LogReader::StopAll() {
  MutexLock lock(mu_);
  requests_.clear();
}

void LogReader::Loop() {
  MutexLock lock(mu_);
  while (!stopping_) {
    for (auto it = requests_.begin(); it != requests_.end();) {
      it = Serve(it->first, it->second) ? requests_.erase(it) : std::next(it);
    }
    changed_.WaitFor(mu_, requests_.empty() ? std::chrono::seconds(10) : kPeriod);
  }
}

std::map<int32_t, std::string> LogReader::Files(const Request& request) const {
  std::map<int32_t, std::string> files;
  std::error_code error;
  const auto folder = std::filesystem::path(log_directory_) / request.job;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    int rank = 0, end = 0;
    if (sscanf(entry.path().filename().c_str(), "rank-%d.log%n", &rank, &end) == 1 && end > 0 &&
        (request.ranks.empty() || request.ranks.count(rank) > 0)) {
      files[rank] = entry.path().string();
    }
  }
  return files;
}

bool LogReader::Serve(uint64_t id, Request& request) {
  // Looked at first: what was written before the last rank ended is then surely read below.
  const bool more_to_come = request.follow && callbacks_.running(request.job, request.ranks);
  for (const auto& [rank, path] : Files(request)) {
    auto [offset, is_new] = request.offsets.try_emplace(rank, 0);
    if (is_new && !request.started) offset->second = TailOffset(path, request.tail_lines);
    while (true) {
      int64_t next = offset->second;
      v1::LogLines message;
      message.set_log_request(id);
      for (std::string& line : ReadLines(path, next, kLinesPerMessage)) {
        v1::LogLine& out = *message.add_lines();
        out.set_rank(rank);
        const int64_t time_us = supervisor::ParseTime(line);
        out.mutable_time()->set_seconds(time_us / 1'000'000);
        out.mutable_time()->set_nanos(static_cast<int32_t>(time_us % 1'000'000 * 1000));
        const size_t text = time_us >= 0 ? line.find(' ') : std::string::npos;
        // The file is another process's to change.
        out.set_line(ValidUtf8(text == std::string::npos ? line : line.substr(text + 1)));
      }
      if (message.lines().empty()) break;
      if (!callbacks_.send(message)) return false;
      offset->second = next;
    }
  }
  request.started = true;
  if (more_to_come) return false;
  v1::LogLines last;
  last.set_log_request(id);
  last.set_done(true);
  return callbacks_.send(last);
}

}  // namespace fedshard::daemon
