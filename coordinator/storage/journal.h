// Where the coordinator's records go before anyone hears of them, and come from when it starts.
// Owned by the service loop and used by one thread at a time; implementations need not be
// thread-safe.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/effects.h"

namespace fedshard::storage {

class Journal {
 public:
  virtual ~Journal() = default;

  // Appends all records or none. They are durable when this returns OK. After an error it is
  // unknown whether they will be there later; the caller must release nothing that depends on them.
  // FAILED_PRECONDITION after Close.
  virtual absl::Status Append(const std::vector<core::Record>& records) = 0;

  // All records in the order in which they were appended.
  virtual absl::StatusOr<std::vector<core::Record>> ReadAll() = 0;

  // Releases what the journal holds. Closing twice is fine.
  virtual absl::Status Close() = 0;
};

}  // namespace fedshard::storage
