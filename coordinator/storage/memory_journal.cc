#include "coordinator/storage/memory_journal.h"

namespace fedshard::storage {

absl::Status MemoryJournal::Append(const std::vector<core::Record>& records) {
  if (closed_) return absl::FailedPreconditionError("the journal is closed");
  for (const core::Record& record : records) {
    bytes_ += record.bytes.size();
    records_.push_back(record);
  }
  while (bytes_ > max_bytes_ && !records_.empty()) {
    bytes_ -= records_.front().bytes.size();
    records_.pop_front();
    dropped_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<core::Record>> MemoryJournal::ReadAll() {
  if (closed_) return absl::FailedPreconditionError("the journal is closed");
  if (dropped_) {
    return absl::DataLossError("the oldest records were dropped to bound the memory journal");
  }
  return std::vector<core::Record>(records_.begin(), records_.end());
}

absl::Status MemoryJournal::Close() {
  closed_ = true;
  return absl::OkStatus();
}

}  // namespace fedshard::storage
