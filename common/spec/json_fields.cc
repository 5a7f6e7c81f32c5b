#include "common/spec/json_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace fedshard {
namespace {

using nlohmann::json;

constexpr int64_t kMaxDimension = int64_t{1} << 24;

}  // namespace

absl::Status BadField(const std::string& field, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", rule));
}

absl::StatusOr<int64_t> Dimension(const json& config, const std::string& field, int64_t fallback,
                                  const std::string& prefix) {
  const std::string name = prefix + field;
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) {
    if (fallback > 0) return fallback;
    return BadField(name, "is missing");
  }
  if (!found->is_number_integer()) return BadField(name, "must be an integer");
  const double value =
      found->get<double>();  // An unsigned 64-bit value stays out of range here too.
  if (value < 1 || value > static_cast<double>(kMaxDimension)) {
    return BadField(name, absl::StrCat("must be 1 to ", kMaxDimension, ", not ", found->dump()));
  }
  return found->get<int64_t>();
}

absl::Status Positive(const json& config, const std::string& field, double& value,
                      const std::string& prefix) {
  const std::string name = prefix + field;
  const auto found = config.find(field);
  if (found == config.end()) return absl::OkStatus();
  if (!found->is_number()) return BadField(name, "must be a number");
  value = found->get<double>();
  if (!std::isfinite(value) || value <= 0) return BadField(name, "must be finite and above 0");
  return absl::OkStatus();
}

absl::Status MustBe(const json& config, const std::string& field, const json& only,
                    const std::string& prefix) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null() || *found == only) return absl::OkStatus();
  const std::string value = found->is_structured() ? std::string("an ") + found->type_name()
                                                   : found->dump().substr(0, 80);
  return BadField(prefix + field,
                  absl::StrCat("is not supported with ", value, ", only ", only.dump()));
}

bool IsGiven(const json& config, const std::string& field) {
  const auto found = config.find(field);
  return found != config.end() && !found->is_null();
}

}  // namespace fedshard
