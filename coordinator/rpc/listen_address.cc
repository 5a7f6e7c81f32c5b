#include "coordinator/rpc/listen_address.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fedshard::rpc {

bool ListenAddress::IsLoopback() const {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

std::string ListenAddress::ToString() const {
  const bool v6 = absl::StrContains(host, ":");
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  const auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no address to listen on: ", why));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return bad("expected HOST:PORT");
  ListenAddress address;
  address.host = text.substr(0, colon);
  if (address.host.size() >= 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (absl::StrContains(address.host, ":")) {
    return bad("an IPv6 address needs brackets, as in [::1]:7070");
  }
  if (address.host.empty()) return bad("the host is missing (0.0.0.0 means all interfaces)");
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return bad("the port must be 0 to 65535");
  }
  address.port = static_cast<uint16_t>(port);
  return address;
}

absl::Status ProbeAddress(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address.ToString(), ": ", gai_strerror(error)));
  }
  absl::Status status;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
    const std::string text =
        absl::StrCat("cannot listen on ", address.ToString(), ": ",
                     errno == EADDRINUSE ? "address already in use" : strerror(errno));
    status = errno == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::UnavailableError(text);
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return status;
}

}  // namespace fedshard::rpc
