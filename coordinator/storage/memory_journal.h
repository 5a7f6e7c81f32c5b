// A journal that lives as long as its process: for tests, and for coordinators whose state may die
// with them. Bounded: a long life is written on disk.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "coordinator/storage/journal.h"

namespace fedshard::storage {

class MemoryJournal : public Journal {
 public:
  // At most `max_bytes` of records are kept: Append then drops the oldest, and ReadAll fails with
  // DATA_LOSS, because what is left no longer tells the whole story.
  explicit MemoryJournal(size_t max_bytes = size_t{64} << 20) : max_bytes_(max_bytes) {}

  absl::Status Append(const std::vector<core::Record>& records) override;
  absl::StatusOr<std::vector<core::Record>> ReadAll() override;
  absl::Status Close() override;

 private:
  const size_t max_bytes_;
  size_t bytes_ = 0;
  bool dropped_ = false;
  bool closed_ = false;
  std::deque<core::Record> records_;
};

}  // namespace fedshard::storage
