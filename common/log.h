// Log lines on standard error: "2026-01-31T12:00:00.000Z INFO message". Thread-safe, one write per
// line. Names are prefixed because LibTorch's headers define LOG and CHECK.
#pragma once

#include <cstdint>
#include <string>

namespace fedshard {

enum class LogLevel { kInfo, kWarning, kError };

// "2026-01-31T12:00:00.000Z": how log lines begin. `wall_us`: microseconds since the Unix epoch.
std::string FormatTimestamp(int64_t wall_us);

// Writes one line; newlines inside the message become spaces.
void LogMessage(LogLevel level, const std::string& message);

inline void LogInfo(const std::string& message) { LogMessage(LogLevel::kInfo, message); }
inline void LogWarning(const std::string& message) { LogMessage(LogLevel::kWarning, message); }
inline void LogError(const std::string& message) { LogMessage(LogLevel::kError, message); }

}  // namespace fedshard
