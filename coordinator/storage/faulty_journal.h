// A journal that fails on order, around a real one. For tests of what must not happen when storage
// fails.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/storage/journal.h"

namespace fedshard::storage {

// How an Append fails.
enum class AppendFault {
  kNothingWritten,  // An error, and the records are not there.
  kWrittenAnyway,   // An error, but the records are there: the answer was lost.
};

class FaultyJournal : public Journal {
 public:
  // `inner` outlives this.
  explicit FaultyJournal(Journal& inner) : inner_(inner) {}

  // The Append after `after` more successful ones fails with `status`, and so do all later ones
  // until Heal().
  void FailAppends(int64_t after, absl::Status status, AppendFault fault);
  void Heal() { pending_.reset(); }

  // Successful ones so far.
  int64_t appends() const { return appends_; }

  absl::Status Append(const std::vector<core::Record>& records) override;
  absl::StatusOr<std::vector<core::Record>> ReadAll() override { return inner_.ReadAll(); }
  absl::Status Close() override { return inner_.Close(); }

 private:
  struct Fault {
    int64_t after = 0;
    absl::Status status;
    AppendFault kind = AppendFault::kNothingWritten;
  };

  Journal& inner_;
  std::optional<Fault> pending_;
  int64_t appends_ = 0;
};

}  // namespace fedshard::storage
