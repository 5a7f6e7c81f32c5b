#include "tests/scenarios/arguments.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fedshard::core {

std::vector<std::string> SplitWords(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false, any = false;
  for (char c : line) {
    if (c == '"') {
      quoted = !quoted;
      any = true;
    } else if (c == ' ' && !quoted) {
      if (any) words.push_back(word);
      word.clear();
      any = false;
    } else {
      word.push_back(c);
      any = true;
    }
  }
  if (any) words.push_back(word);
  return words;
}

std::string Taker::Text(const std::string& key, const std::string& otherwise) {
  auto it = arguments_.find(key);
  if (it == arguments_.end()) return otherwise;
  std::string value = it->second;
  arguments_.erase(it);
  return value;
}

int64_t Taker::Int(const std::string& key, int64_t otherwise) {
  int64_t value = otherwise;
  if (Has(key) && !absl::SimpleAtoi(Text(key), &value)) bad_ = key;
  return value;
}

double Taker::Real(const std::string& key, double otherwise) {
  double value = otherwise;
  if (Has(key) && !absl::SimpleAtod(Text(key), &value)) bad_ = key;
  return value;
}

absl::Status Taker::Done() const {
  if (!bad_.empty()) return absl::InvalidArgumentError(absl::StrCat("bad number in ", bad_));
  if (arguments_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unknown argument ", arguments_.begin()->first));
}

absl::StatusOr<std::vector<int32_t>> ParseList(const std::string& text, int32_t count) {
  std::vector<int32_t> list;
  if (text == "all") {
    for (int32_t i = 0; i < count; ++i) list.push_back(i);
    return list;
  }
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int32_t first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last)) {
      return absl::InvalidArgumentError(absl::StrCat("bad list ", text));
    }
    for (int32_t i = first; i <= last; ++i) list.push_back(i);
  }
  return list;
}

absl::StatusOr<int64_t> ParseDuration(const std::string& text) {
  double seconds = 0;
  if (!absl::EndsWith(text, "s") || !absl::SimpleAtod(text.substr(0, text.size() - 1), &seconds)) {
    return absl::InvalidArgumentError(absl::StrCat("bad duration ", text));
  }
  return static_cast<int64_t>(seconds * 1e6);
}

absl::StatusOr<Mesh> ParseMesh(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  Mesh mesh;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &mesh.groups) ||
      !absl::SimpleAtoi(parts[1], &mesh.replicas) || !absl::SimpleAtoi(parts[2], &mesh.shards)) {
    return absl::InvalidArgumentError(absl::StrCat("bad mesh ", text));
  }
  return mesh;
}

}  // namespace fedshard::core
