// Exit codes of fedshard-model: those of fedshard (docs/cli.md), which passes them on, and one that
// its ranks tell their parent.
#pragma once

#include "absl/status/status.h"

namespace fedshard::inference {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotFound = 3;
inline constexpr int kExitInterrupted = 130;
// A rank lost another: the other one knows why.
inline constexpr int kExitCollective = 75;

inline int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailed;
  }
}

}  // namespace fedshard::inference
