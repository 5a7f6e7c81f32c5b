#include "common/spec/rope_json.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/spec/json_fields.h"
#include "common/status_macros.h"

namespace fedshard {
namespace {

using nlohmann::json;

// The name under `rope_type`, or `type` as older writers call it.
absl::StatusOr<RopeScaling::Type> TypeOf(const json& rope, const std::string& prefix) {
  std::string name = "default";
  std::string given_as;
  for (const char* field : {"rope_type", "type"}) {
    if (!IsGiven(rope, field)) continue;
    if (!rope[field].is_string()) return BadField(prefix + field, "must be a string");
    const auto value = rope[field].get<std::string>();
    if (!given_as.empty() && value != name) {
      return BadField(prefix + field, absl::StrCat("contradicts ", given_as));
    }
    name = value;
    given_as = field;
  }
  if (name == "default") return RopeScaling::Type::kDefault;
  if (name == "linear") return RopeScaling::Type::kLinear;
  if (name == "llama3") return RopeScaling::Type::kLlama3;
  return BadField(prefix + given_as, absl::StrCat("\"", name.substr(0, 80),
                                                  "\" is not supported, only default, linear and "
                                                  "llama3"));
}

std::set<std::string> FieldsOf(RopeScaling::Type type) {
  switch (type) {
    case RopeScaling::Type::kDefault:
      return {};
    case RopeScaling::Type::kLinear:
      return {"factor"};
    case RopeScaling::Type::kLlama3:
      return {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
  }
  return {};
}

absl::StatusOr<RopeScaling> ParseScaling(const json& rope, const std::string& prefix) {
  RopeScaling scaling;
  ASSIGN_OR_RETURN(scaling.type, TypeOf(rope, prefix));
  const std::set<std::string> needed = FieldsOf(scaling.type);
  for (const auto& [field, value] : rope.items()) {
    if (field == "rope_type" || field == "type" || field == "rope_theta") continue;
    if (field == "partial_rotary_factor") {
      RETURN_IF_ERROR(MustBe(rope, field, 1.0, prefix));
    } else if (needed.count(field) == 0 && !value.is_null()) {
      return BadField(prefix + field, "is not known for this kind of scaling");
    }
  }
  for (const std::string& field : needed) {
    if (!IsGiven(rope, field)) return BadField(prefix + field, "is missing");
  }
  if (needed.count("factor") > 0) {
    RETURN_IF_ERROR(Positive(rope, "factor", scaling.factor, prefix));
  }
  if (scaling.type != RopeScaling::Type::kLlama3) return scaling;
  RETURN_IF_ERROR(Positive(rope, "low_freq_factor", scaling.low_freq_factor, prefix));
  RETURN_IF_ERROR(Positive(rope, "high_freq_factor", scaling.high_freq_factor, prefix));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return BadField(prefix + "high_freq_factor", "must be above low_freq_factor");
  }
  ASSIGN_OR_RETURN(scaling.original_max_position_embeddings,
                   Dimension(rope, "original_max_position_embeddings", 0, prefix));
  return scaling;
}

}  // namespace

absl::Status ParseRope(const json& config, ModelConfig& model) {
  RETURN_IF_ERROR(Positive(config, "rope_theta", model.rope_theta));
  const bool newer = IsGiven(config, "rope_parameters");
  const std::string field = newer ? "rope_parameters" : "rope_scaling";
  if (!IsGiven(config, field)) return absl::OkStatus();
  if (newer && IsGiven(config, "rope_scaling")) {
    return BadField("rope_scaling", "is there beside rope_parameters; only one of them may be");
  }
  const json& rope = config[field];
  if (!rope.is_object()) return BadField(field, "must be an object");
  const std::string prefix = field + ".";
  if (rope.contains("rope_theta")) {
    double theta = 0;
    RETURN_IF_ERROR(Positive(rope, "rope_theta", theta, prefix));
    if (config.contains("rope_theta") && theta != model.rope_theta) {
      return BadField(prefix + "rope_theta", "contradicts rope_theta");
    }
    model.rope_theta = theta;
  }
  ASSIGN_OR_RETURN(model.rope_scaling, ParseScaling(rope, prefix));
  return absl::OkStatus();
}

}  // namespace fedshard
