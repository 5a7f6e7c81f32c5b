// The wheel contains Gloo's code but not its headers. ProcessGroupGloo.hpp needs these declarations to compile; nothing
// here is called or laid out by us, except the abstract Store, whose virtual functions are in Gloo's order.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

namespace gloo {

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace transport

class Context {
 public:
  std::chrono::milliseconds getTimeout() const;
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
