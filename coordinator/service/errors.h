// Errors with their machine-readable reason: an absl::Status carries it as a payload until the RPC
// adapters put it on the wire. Pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fedshard::service {

// Reasons as listed in docs/design/0001.
inline constexpr char kInvalidField[] = "INVALID_FIELD";
inline constexpr char kJobNotFound[] = "JOB_NOT_FOUND";
inline constexpr char kQueueFull[] = "QUEUE_FULL";
inline constexpr char kStaleIncarnation[] = "STALE_INCARNATION";
inline constexpr char kScopeGone[] = "SCOPE_GONE";
inline constexpr char kStorageError[] = "STORAGE_ERROR";
inline constexpr char kShuttingDown[] = "SHUTTING_DOWN";

// `status` must not be OK; an empty reason leaves it without one.
absl::Status WithReason(absl::Status status, absl::string_view reason);

// The reason given to WithReason; empty when there is none.
std::string ReasonOf(const absl::Status& status);

}  // namespace fedshard::service
