#include "coordinator/service/errors.h"

#include "absl/strings/cord.h"
#include "absl/types/optional.h"

namespace fedshard::service {
namespace {
constexpr char kReasonPayload[] = "fedshard/reason";
}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  if (!reason.empty()) status.SetPayload(kReasonPayload, absl::Cord(reason));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kReasonPayload);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace fedshard::service
