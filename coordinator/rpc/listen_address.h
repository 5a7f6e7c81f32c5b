// HOST:PORT of a listening socket. Pure but for ProbeAddress.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fedshard::rpc {

struct ListenAddress {
  std::string host;  // Without brackets.
  uint16_t port = 0;

  bool IsLoopback() const;
  std::string ToString() const;  // IPv6 in brackets.
};

// INVALID_ARGUMENT says what is wrong with the text.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

// Binds and closes again, only to find out why an address cannot be listened on: gRPC and civetweb
// do not tell. ALREADY_EXISTS when it is in use, UNAVAILABLE with the system's reason otherwise; OK
// when binding works.
absl::Status ProbeAddress(const ListenAddress& address);

}  // namespace fedshard::rpc
