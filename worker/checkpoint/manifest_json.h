// The JSON around manifests: sealed with a checksum, and read field by field with the path of each
// field in the error. Pure. Private to this room.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fedshard::checkpoint {

std::string HexText(uint64_t value);  // "00ff00ff00ff00ff"

// Adds the format version and a checksum over everything; returns the file's text.
std::string Seal(nlohmann::json body);
// The body of such a text. UNIMPLEMENTED: of a newer version; DATA_LOSS: garbled.
absl::StatusOr<nlohmann::json> Unseal(const std::string& text);

// Reads one JSON object. The first error of all readers that share `status` is kept there; from
// then on everything reads as empty. Finish() refuses fields that nobody asked for.
class ObjectReader {
 public:
  // `path`: of the object, "" or "files[2]."; `status` must outlive the reader.
  ObjectReader(const nlohmann::json& value, std::string path, absl::Status& status);

  int64_t Int(const std::string& field, int64_t least, int64_t most);
  std::string Text(const std::string& field);
  // 16 lower-case hex digits.
  uint64_t Hex(const std::string& field);
  // An empty array or null when it is missing.
  const nlohmann::json& Array(const std::string& field);
  const nlohmann::json& Object(const std::string& field);
  void Finish();

  void Fail(const std::string& field, const std::string& what);
  // "files[2].tensors[7]."
  std::string PathOf(const std::string& field, size_t index) const;
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json& Get(const std::string& field);

  const nlohmann::json& value_;
  std::string path_;
  absl::Status& status_;
  std::set<std::string> asked_;
};

// Nothing when it is not 16 lower-case hex digits.
bool ParseHex(const nlohmann::json& value, uint64_t& out);

}  // namespace fedshard::checkpoint
