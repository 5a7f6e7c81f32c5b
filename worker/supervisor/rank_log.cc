#include "worker/supervisor/rank_log.h"

#include <sys/stat.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/utf8.h"

namespace fedshard::supervisor {

int64_t ParseTime(const std::string& line) {
  tm utc{};
  int millis = 0;
  if (sscanf(line.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &utc.tm_year, &utc.tm_mon, &utc.tm_mday,
             &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &millis) != 7) {
    return -1;
  }
  utc.tm_year -= 1900;
  utc.tm_mon -= 1;
  return static_cast<int64_t>(timegm(&utc)) * 1'000'000 + millis * 1000;
}

absl::StatusOr<RankLog> RankLog::Open(const std::string& path, const Clock& clock) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  FILE* file = error ? nullptr : fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot write the log ", path, ": ",
                                                     error ? error.message() : strerror(errno)));
  }
  return RankLog(file, clock);
}

RankLog::RankLog(RankLog&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      clock_(other.clock_),
      line_(std::move(other.line_)),
      tail_(std::move(other.tail_)) {}

RankLog::~RankLog() {
  if (file_ != nullptr) fclose(file_);
}

void RankLog::Add(const char* data, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      WriteLine();
    } else if (line_.size() < kMaxLineBytes) {
      line_ += data[i];
      if (line_.size() == kMaxLineBytes) line_ += " [cut]";
    }
  }
  fflush(file_);
}

void RankLog::Finish() {
  if (!line_.empty()) WriteLine();
  fflush(file_);
}

void RankLog::WriteLine() {
  // A program may print anything, and a cut may go through a character; lines travel as protobuf
  // strings, and one bad byte would make every message with them unreadable.
  line_ = ValidUtf8(std::move(line_));
  // Our own programs stamp their lines; libraries do not.
  if (ParseTime(line_) < 0) line_ = FormatTimestamp(clock_->Now().wall_us) + " " + line_;
  fwrite(line_.data(), 1, line_.size(), file_);
  fputc('\n', file_);
  tail_.push_back(std::exchange(line_, {}));
  if (tail_.size() > kTailLines) tail_.pop_front();
}

}  // namespace fedshard::supervisor
