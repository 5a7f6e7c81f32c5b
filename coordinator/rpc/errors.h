// Errors on the wire: canonical code and text in the status, the machine-readable part
// (ErrorDetail) in the binary trailer "fedshard-error-bin". Thread-safe.
#pragma once

#include <grpcpp/support/status.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/error_trailer.h"
#include "fedshard/v1/error.pb.h"

namespace fedshard::rpc {

// Everything that is wrong with a request, by field.
struct Violations {
  void Add(const std::string& field, const std::string& description);
  bool empty() const { return list.empty(); }
  std::vector<v1::FieldViolation> list;
};

// A status to finish a call with, and its detail for the trailer; the detail is empty when the
// status is OK.
struct WireError {
  grpc::Status status;
  v1::ErrorDetail detail;
};

// The reason travels inside (service/errors.h).
WireError ToWire(const absl::Status& status);
// INVALID_ARGUMENT with every violation in text and detail; `violations` must not be empty.
WireError ToWire(const Violations& violations);

// Puts the detail into the call's trailer and returns the status. `Context` is a
// grpc::CallbackServerContext or grpc::ServerContext; call once, before finishing.
template <typename Context>
grpc::Status FinishWith(Context* context, const WireError& error) {
  if (!error.status.ok()) {
    context->AddTrailingMetadata(kErrorTrailer, error.detail.SerializeAsString());
  }
  return error.status;
}

}  // namespace fedshard::rpc
