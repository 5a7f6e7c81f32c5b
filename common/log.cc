#include "common/log.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>

#include "common/clock.h"

namespace fedshard {

std::string FormatTimestamp(int64_t wall_us) {
  const time_t seconds = wall_us / 1'000'000;
  tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  const size_t date = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(text + date, sizeof text - date, ".%03dZ", static_cast<int>(wall_us / 1000 % 1000));
  return text;
}

void LogMessage(LogLevel level, const std::string& message) {
  static constexpr const char* kNames[] = {"INFO", "WARNING", "ERROR"};
  std::string line = FormatTimestamp(SystemClock().Now().wall_us) + " ";
  line += kNames[static_cast<int>(level)];
  line += ' ';
  for (const char c : message) line += c == '\n' ? ' ' : c;
  line += '\n';
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace fedshard
