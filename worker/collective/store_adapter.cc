#include "worker/collective/store_adapter.h"

#include <algorithm>
#include <utility>

#include "worker/collective/comm.h"

namespace fedshard::collective {
namespace {

class KeyValueStore : public c10d::Store {
 public:
  KeyValueStore(std::shared_ptr<KeyValueClient> client, std::chrono::milliseconds timeout)
      : Store(timeout), client_(std::move(client)) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<KeyValueStore>(client_, timeout_);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    client_->Set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return client_->Get({key}, timeout_).front();
  }
  void wait(const std::vector<std::string>& keys) override { client_->Get(keys, timeout_); }
  // Callers pass c10d's 5-minute default where they mean "as configured": the shorter one holds.
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    client_->Get(keys, std::min(timeout, timeout_));
  }

  // Neither ProcessGroupGloo nor ProcessGroupNCCL (without a watchdog dump) calls these.
  int64_t add(const std::string&, int64_t) override { return Unsupported("add"); }
  bool deleteKey(const std::string&) override { return Unsupported("deleteKey") != 0; }
  bool check(const std::vector<std::string>& keys) override {
    try {
      client_->Get(keys, std::chrono::milliseconds(1));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  int64_t getNumKeys() override { return Unsupported("getNumKeys"); }

 private:
  static int64_t Unsupported(const char* what) {
    throw CommError(std::string("rendezvous store: ") + what + " is not supported");
  }

  std::shared_ptr<KeyValueClient> client_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> MakeStore(std::shared_ptr<KeyValueClient> client,
                                          std::chrono::milliseconds timeout) {
  return c10::make_intrusive<KeyValueStore>(std::move(client), timeout);
}

}  // namespace fedshard::collective
