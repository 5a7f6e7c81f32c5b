// The words of script lines: splitting, named arguments, lists and durations.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mesh.h"

namespace fedshard::core {

using Arguments = std::map<std::string, std::string>;

// Words of a line; "quotes" keep spaces together and are dropped.
std::vector<std::string> SplitWords(const std::string& line);

// Takes arguments by name; what is left over at the end is a mistake.
class Taker {
 public:
  // `arguments` outlives this and loses what is taken.
  explicit Taker(Arguments& arguments) : arguments_(arguments) {}

  bool Has(const std::string& key) const { return arguments_.count(key) != 0; }
  std::string Text(const std::string& key, const std::string& otherwise = "");
  int64_t Int(const std::string& key, int64_t otherwise = 0);
  double Real(const std::string& key, double otherwise = 0);
  bool Flag(const std::string& key) { return arguments_.erase(key) > 0; }

  // INVALID_ARGUMENT when a number was none or an argument was not taken.
  absl::Status Done() const;

 private:
  Arguments& arguments_;
  std::string bad_;
};

// "0-3,5", or "all" of [0, count).
absl::StatusOr<std::vector<int32_t>> ParseList(const std::string& text, int32_t count);
// "2x1x4"
absl::StatusOr<Mesh> ParseMesh(const std::string& text);
// "1.5s", in microseconds.
absl::StatusOr<int64_t> ParseDuration(const std::string& text);

}  // namespace fedshard::core
