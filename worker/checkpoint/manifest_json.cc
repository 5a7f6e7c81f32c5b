#include "worker/checkpoint/manifest_json.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/manifest.h"
#include "worker/collective/hash.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "format";
constexpr char kChecksum[] = "checksum";
constexpr int kMaxDepth = 8;  // A manifest has six levels.

// Independent of white space and of the order of fields.
std::string ChecksumOf(const json& body) {
  const std::string text = body.dump(-1, ' ', false, json::error_handler_t::replace);
  return HexText(collective::Fingerprint64(text.data(), text.size()));
}

absl::Status Garbled(const std::string& what) { return absl::DataLossError(what); }

// Objects nested deeper than the stack would kill whoever prints them, so depth is bounded here.
absl::StatusOr<json> ParseBounded(const std::string& text) {
  if (text.size() > static_cast<size_t>(kMaxManifestBytes)) return Garbled("is too large");
  bool too_deep = false;
  const auto bound = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) too_deep = true;
    return !too_deep;
  };
  json parsed = json::parse(text, bound, /*allow_exceptions=*/false);
  if (too_deep) return Garbled("is nested too deeply");
  if (!parsed.is_object()) return Garbled("is not a JSON object");
  return parsed;
}

}  // namespace

std::string HexText(uint64_t value) {
  char text[20];
  snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

bool ParseHex(const json& value, uint64_t& out) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  out = std::stoull(text, nullptr, 16);
  return true;
}

std::string Seal(json body) {
  body[kFormat] = kFormatVersion;
  body[kChecksum] = ChecksumOf(body);
  return body.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<json> Unseal(const std::string& text) {
  auto body = ParseBounded(text);
  if (!body.ok()) return body.status();
  const auto format = body->find(kFormat);
  if (format == body->end() || !format->is_number_unsigned()) {
    return Garbled("format: is missing or not a number");
  }
  const auto version = format->get<uint64_t>();
  // First of all: a newer version may do everything else in another way.
  if (version > static_cast<uint64_t>(kFormatVersion)) {
    return absl::UnimplementedError(absl::StrCat("format: ", version, " is newer than ",
                                                 kFormatVersion, ", the newest known here"));
  }
  if (version != static_cast<uint64_t>(kFormatVersion)) {
    return Garbled(absl::StrCat("format: ", version, " does not exist"));
  }
  const auto checksum = body->find(kChecksum);
  if (checksum == body->end() || !checksum->is_string()) {
    return Garbled("checksum: is missing or not a string");
  }
  const std::string expected = checksum->get<std::string>();
  body->erase(checksum);
  if (ChecksumOf(*body) != expected) {
    return Garbled("checksum: does not match the rest of the text");
  }
  body->erase(kFormat);
  return body;
}

ObjectReader::ObjectReader(const json& value, std::string path, absl::Status& status)
    : value_(value), path_(std::move(path)), status_(status) {
  if (!value.is_object()) Fail("", "is not an object");
}

void ObjectReader::Fail(const std::string& field, const std::string& what) {
  if (!status_.ok()) return;
  std::string name = path_ + field;
  if (field.empty() && !name.empty()) name.pop_back();  // The object itself, without its dot.
  status_ = Garbled(absl::StrCat(name, ": ", what));
}

std::string ObjectReader::PathOf(const std::string& field, size_t index) const {
  return absl::StrCat(path_, field, "[", index, "].");
}

const json& ObjectReader::Get(const std::string& field) {
  static const json* null = new json;
  asked_.insert(field);
  if (!status_.ok()) return *null;
  const auto found = value_.find(field);
  if (found == value_.end()) {
    Fail(field, "is missing");
    return *null;
  }
  return *found;
}

int64_t ObjectReader::Int(const std::string& field, int64_t least, int64_t most) {
  const json& value = Get(field);
  if (!status_.ok()) return 0;
  // Negative numbers are the signed ones; unsigned ones may be beyond the signed range.
  const bool small_enough =
      value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  if (!small_enough || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    const std::string text = value.is_number() ? value.dump() : value.type_name();
    Fail(field, absl::StrCat("must be a whole number from ", least, " to ", most, ", is ", text));
    return 0;
  }
  return value.get<int64_t>();
}

std::string ObjectReader::Text(const std::string& field) {
  const json& value = Get(field);
  if (!status_.ok()) return "";
  if (!value.is_string()) {
    Fail(field, "must be a string");
    return "";
  }
  return value.get<std::string>();
}

uint64_t ObjectReader::Hex(const std::string& field) {
  const json& value = Get(field);
  uint64_t number = 0;
  if (status_.ok() && !ParseHex(value, number)) Fail(field, "must be 16 hex digits");
  return number;
}

const json& ObjectReader::Array(const std::string& field) {
  static const json* empty = new json(json::array());
  const json& value = Get(field);
  if (!status_.ok()) return *empty;
  if (value.is_array()) return value;
  Fail(field, "must be a list");
  return *empty;
}

const json& ObjectReader::Object(const std::string& field) {
  static const json* empty = new json(json::object());
  const json& value = Get(field);
  if (!status_.ok()) return *empty;
  if (value.is_object()) return value;
  Fail(field, "must be an object");
  return *empty;
}

void ObjectReader::Finish() {
  if (!status_.ok()) return;
  for (const auto& [field, value] : value_.items()) {
    if (asked_.count(field) == 0) {
      Fail(field.substr(0, 80), "is not a field of this format");
      return;
    }
  }
}

}  // namespace fedshard::checkpoint
