#include "coordinator/rpc/names.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fedshard::rpc {
namespace {

constexpr int32_t kDefaultPageSize = 50;
constexpr int32_t kMaxPageSize = 1000;
constexpr size_t kMaxTokenBytes = 512;
constexpr char kSeparator = '\n';  // In no name.

}  // namespace

bool IsId(const std::string& id) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !id.empty() && id.size() <= 63 && is_lower(id.front()) &&
         std::all_of(id.begin(), id.end(),
                     [&](char c) { return is_lower(c) || is_digit(c) || c == '-'; });
}

std::string ParseJobName(const std::string& name, const std::string& field,
                         Violations& violations) {
  const bool prefixed = absl::StartsWith(name, "jobs/");
  const std::string id = prefixed ? name.substr(5) : "";
  if (IsId(id)) return id;
  violations.Add(field,
                 "must be jobs/ID, with an ID of 1-63 lower-case letters, digits and "
                 "hyphens that starts with a letter");
  return "";
}

void CheckRequestId(const std::string& request_id, Violations& violations) {
  if (request_id.size() > kMaxRequestIdBytes) {
    violations.Add("request_id", absl::StrCat("at most ", kMaxRequestIdBytes, " bytes"));
  }
}

Page ParsePage(int32_t page_size, const std::string& page_token, const std::string& collection,
               Violations& violations) {
  Page page;
  if (page_size < 0) violations.Add("page_size", "must not be negative");
  page.size = page_size <= 0 ? kDefaultPageSize : std::min(page_size, kMaxPageSize);
  if (page_token.empty()) return page;
  std::string text;
  const std::string prefix = collection + kSeparator;
  if (page_token.size() > kMaxTokenBytes || !absl::WebSafeBase64Unescape(page_token, &text) ||
      !absl::StartsWith(text, prefix)) {
    violations.Add("page_token", "is not a token of this list");
    return page;
  }
  page.after = text.substr(prefix.size());
  return page;
}

std::string PageToken(const std::string& collection, const std::string& after) {
  return absl::WebSafeBase64Escape(absl::StrCat(collection, std::string(1, kSeparator), after));
}

}  // namespace fedshard::rpc
