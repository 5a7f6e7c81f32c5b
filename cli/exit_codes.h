// Exit codes of fedshard, part of its interface (docs/cli.md).
#pragma once

namespace fedshard::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // The operation, or the job waited for, failed.
inline constexpr int kExitUsage = 2;   // Wrong arguments or an invalid job file.
inline constexpr int kExitNotFound = 3;
inline constexpr int kExitRefused = 4;      // By the state of things: name taken, job ended, ...
inline constexpr int kExitUnreachable = 5;  // No coordinator, or no answer in time.
inline constexpr int kExitInterrupted = 130;

}  // namespace fedshard::cli
