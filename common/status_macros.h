// Early return on errors of absl::Status and absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define FEDSHARD_CONCAT_INNER(a, b) a##b
#define FEDSHARD_CONCAT(a, b) FEDSHARD_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                                           \
  do {                                                                  \
    if (absl::Status fedshard_status = (expr); !fedshard_status.ok()) { \
      return fedshard_status;                                           \
    }                                                                   \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expr) \
  FEDSHARD_ASSIGN_OR_RETURN(FEDSHARD_CONCAT(fedshard_statusor_, __LINE__), lhs, expr)
#define FEDSHARD_ASSIGN_OR_RETURN(temporary, lhs, expr) \
  auto temporary = (expr);                              \
  if (!temporary.ok()) return temporary.status();       \
  lhs = std::move(temporary).value()
