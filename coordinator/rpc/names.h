// Form of names, ids and page tokens in requests. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/rpc/errors.h"

namespace fedshard::rpc {

// Adds what common/ids.h says is wrong with the id.
void CheckId(const std::string& id, const std::string& field, Violations& violations);

// "jobs/ID" -> ID; a violation of `field` and an empty string when it is something else.
std::string ParseJobName(const std::string& name, const std::string& field, Violations& violations);

inline constexpr size_t kMaxRequestIdBytes = 128;
void CheckRequestId(const std::string& request_id, Violations& violations);

struct Page {
  size_t size = 50;
  std::string after;  // Where the page before ended; empty at the start.
};
// `collection` ("jobs", "jobs/x/rounds") is part of the token: one of another list is refused.
Page ParsePage(int32_t page_size, const std::string& page_token, const std::string& collection,
               Violations& violations);
std::string PageToken(const std::string& collection, const std::string& after);

// A page ends early when its messages would exceed this, so that it fits into a default gRPC
// message.
inline constexpr size_t kMaxPageBytes = 3 << 20;

}  // namespace fedshard::rpc
