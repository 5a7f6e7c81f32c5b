#include "coordinator/rpc/names.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/ids.h"

namespace fedshard::rpc {
namespace {

constexpr int32_t kDefaultPageSize = 50;
constexpr int32_t kMaxPageSize = 1000;
constexpr size_t kMaxTokenBytes = 512;
constexpr char kSeparator = '\n';  // In no name.

}  // namespace

void CheckId(const std::string& id, const std::string& field, Violations& violations) {
  const absl::Status status = ValidateId("the ID", id);
  if (!status.ok()) violations.Add(field, std::string(status.message()));
}

std::string ParseJobName(const std::string& name, const std::string& field,
                         Violations& violations) {
  if (!absl::StartsWith(name, "jobs/")) {
    violations.Add(field, "must have the form jobs/ID");
    return "";
  }
  const std::string id = name.substr(5);
  CheckId(id, field, violations);
  return id;
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
