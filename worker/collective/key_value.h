// A c10d::Store over any key-value service, so that rendezvous keys can live in the coordinator
// without gRPC headers meeting LibTorch's.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace fedshard::collective {

// Implemented by the trainer over gRPC, by tests in memory. Thread-safe. Throws std::runtime_error.
class KeyValueClient {
 public:
  virtual ~KeyValueClient() = default;
  virtual void Set(const std::string& key, const std::vector<uint8_t>& value) = 0;
  // Waits until all keys are there.
  virtual std::vector<std::vector<uint8_t>> Get(const std::vector<std::string>& keys,
                                                std::chrono::milliseconds timeout) = 0;
};

}  // namespace fedshard::collective
