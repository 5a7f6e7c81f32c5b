// Runs N ranks as threads of a test and re-throws the first error; and a rendezvous in memory.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "worker/collective/comm.h"
#include "worker/collective/key_value.h"

namespace fedshard::collective {

inline void RunRanks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

class MemoryKeyValue : public KeyValueClient {
 public:
  void Set(const std::string& key, const std::vector<uint8_t>& value) override {
    MutexLock lock(mu_);
    values_[key] = value;
    changed_.NotifyAll();
  }
  std::vector<std::vector<uint8_t>> Get(const std::vector<std::string>& keys,
                                        std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mu_);
    std::vector<std::vector<uint8_t>> result;
    for (const std::string& key : keys) {
      while (values_.count(key) == 0) {
        if (std::chrono::steady_clock::now() >= deadline) throw CommError("no key " + key);
        changed_.WaitFor(mu_, std::chrono::milliseconds(20));
      }
      result.push_back(values_.at(key));
    }
    return result;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::map<std::string, std::vector<uint8_t>> values_;
};

}  // namespace fedshard::collective
