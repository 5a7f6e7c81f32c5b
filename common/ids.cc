#include "common/ids.h"

#include <cstdint>
#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"

namespace fedshard {

absl::Status ValidateId(const std::string& what, const std::string& id) {
  const auto bad = [&](const char* rule) {
    return absl::InvalidArgumentError(absl::StrCat(what, " \"", id.substr(0, 80), "\" ", rule));
  };
  if (id.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " is empty"));
  if (id.size() > 63) return bad("is longer than 63 characters");
  for (const char c : id) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-')) {
      return bad("has characters other than lower-case letters, digits and hyphens");
    }
  }
  if (!(id.front() >= 'a' && id.front() <= 'z')) return bad("does not start with a letter");
  if (id.back() == '-') return bad("ends with a hyphen");
  return absl::OkStatus();
}

std::string NewIncarnation() {
  std::random_device random;
  std::string text;
  for (int i = 0; i < 4; ++i) {
    char word[9];
    snprintf(word, sizeof word, "%08x", static_cast<uint32_t>(random()));
    text += word;
  }
  return text;
}

}  // namespace fedshard
