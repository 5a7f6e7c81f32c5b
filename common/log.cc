#include "common/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

namespace fedshard {

void LogMessage(LogLevel level, const std::string& message) {
  static constexpr const char* kNames[] = {"INFO", "WARNING", "ERROR"};
  timeval now{};
  gettimeofday(&now, nullptr);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char prefix[64];
  const size_t date = strftime(prefix, sizeof prefix, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(prefix + date, sizeof prefix - date, ".%03dZ ", static_cast<int>(now.tv_usec / 1000));
  std::string line = prefix;
  line += kNames[static_cast<int>(level)];
  line += ' ';
  for (const char c : message) line += c == '\n' ? ' ' : c;
  line += '\n';
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace fedshard
