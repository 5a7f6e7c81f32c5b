// Reading a config.json field by field. Pure. Errors are INVALID_ARGUMENT and begin with the name
// of the field; they never show the text of a list or an object, which may be long and nested
// deeper than the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fedshard {

absl::Status BadField(const std::string& field, const std::string& rule);

// A whole number from 1 to 2^24, larger than any published model's; `fallback` when it is missing
// or null, unless that is 0. `prefix` goes before the field's name in errors ("rope_scaling.").
absl::StatusOr<int64_t> Dimension(const nlohmann::json& config, const std::string& field,
                                  int64_t fallback = 0, const std::string& prefix = "");

// A finite number above 0; `value` stays when the field is missing.
absl::Status Positive(const nlohmann::json& config, const std::string& field, double& value,
                      const std::string& prefix = "");

// The field may be missing, null or `only`: the one value that is supported.
absl::Status MustBe(const nlohmann::json& config, const std::string& field,
                    const nlohmann::json& only, const std::string& prefix = "");

// Present and not null.
bool IsGiven(const nlohmann::json& config, const std::string& field);

}  // namespace fedshard
