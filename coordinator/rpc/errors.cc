#include "coordinator/rpc/errors.h"

#include "absl/strings/str_cat.h"
#include "coordinator/service/errors.h"

namespace fedshard::rpc {
namespace {

// Trailers count against the peer's metadata limit (8 KiB by default), so the text and the list are
// cut.
constexpr size_t kMaxMessageBytes = 4096;
constexpr size_t kMaxViolations = 16;
constexpr size_t kMaxDescriptionBytes = 200;

std::string Cut(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  // Not inside a UTF-8 sequence: the detail's strings must stay valid.
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return absl::StrCat(text.substr(0, bytes), "...");
}

}  // namespace

void Violations::Add(const std::string& field, const std::string& description) {
  v1::FieldViolation violation;
  violation.set_field(field);
  violation.set_description(description);
  list.push_back(std::move(violation));
}

WireError ToWire(const absl::Status& status) {
  WireError error;
  if (status.ok()) return error;
  // The codes of the two agree by number.
  error.status = grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                              Cut(status.message(), kMaxMessageBytes));
  error.detail.set_reason(service::ReasonOf(status));
  return error;
}

WireError ToWire(const Violations& violations) {
  WireError error;
  error.detail.set_reason(service::kInvalidField);
  std::string text;
  for (const v1::FieldViolation& violation : violations.list) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", violation.field(), ": ",
                    violation.description());
    if (error.detail.violations_size() == kMaxViolations) continue;
    v1::FieldViolation* cut = error.detail.add_violations();
    cut->set_field(Cut(violation.field(), kMaxDescriptionBytes));
    cut->set_description(Cut(violation.description(), kMaxDescriptionBytes));
  }
  error.status = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, Cut(text, kMaxMessageBytes));
  return error;
}

}  // namespace fedshard::rpc
