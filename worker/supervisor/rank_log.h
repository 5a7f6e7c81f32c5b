// One rank's output: a file of time-stamped lines, and its last lines in memory for the message of
// a failed job. Used by the supervisor's thread only.
#pragma once

#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"

namespace fedshard::supervisor {

class RankLog {
 public:
  static constexpr size_t kTailLines = 20;
  static constexpr size_t kMaxLineBytes = 4096;  // Longer lines are cut, with a mark.

  // Appends to `path`; folders are made. RESOURCE_EXHAUSTED or PERMISSION_DENIED with the path.
  static absl::StatusOr<RankLog> Open(const std::string& path, const Clock& clock);
  RankLog(RankLog&& other) noexcept;
  RankLog& operator=(RankLog&&) = delete;
  ~RankLog();

  // Bytes as they come from the pipe; complete lines are written, as valid UTF-8.
  void Add(const char* data, size_t size);
  // Writes an unfinished last line.
  void Finish();
  std::vector<std::string> Tail() const { return {tail_.begin(), tail_.end()}; }

 private:
  RankLog(FILE* file, const Clock& clock) : file_(file), clock_(&clock) {}
  void WriteLine();

  FILE* file_;
  const Clock* clock_;  // Must outlive this.
  std::string line_;
  std::deque<std::string> tail_;
};

// Wall time in microseconds of a line that begins as FormatTimestamp() writes; -1 when it does not.
int64_t ParseTime(const std::string& line);

}  // namespace fedshard::supervisor
