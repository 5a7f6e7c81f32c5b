#include "coordinator/storage/faulty_journal.h"

#include <utility>

#include "common/status_macros.h"

namespace fedshard::storage {

void FaultyJournal::FailAppends(int64_t after, absl::Status status, AppendFault fault) {
  pending_ = Fault{after, std::move(status), fault};
}

absl::Status FaultyJournal::Append(const std::vector<core::Record>& records) {
  if (pending_ && pending_->after == 0) {
    if (pending_->kind == AppendFault::kWrittenAnyway) RETURN_IF_ERROR(inner_.Append(records));
    return pending_->status;
  }
  RETURN_IF_ERROR(inner_.Append(records));
  if (pending_) --pending_->after;
  ++appends_;
  return absl::OkStatus();
}

}  // namespace fedshard::storage
