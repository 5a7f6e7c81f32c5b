// What both commands do before and while their ranks run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "worker/inference/model_source.h"
#include "worker/inference/options.h"
#include "worker/inference/task.h"

namespace fedshard::inference {

// "fedshard: MESSAGE" on standard error.
void Warn(const std::string& message);

// OpenModel, with a warning for each damaged checkpoint that was passed over.
absl::StatusOr<ModelSource> OpenModelFor(const CommonOptions& options);

// The common part of the ranks' task.
RankTask TaskFor(const CommonOptions& options, const ModelSource& model, const std::string& folder);

// A line of the first rank. INTERNAL when it is no JSON object.
absl::StatusOr<nlohmann::json> ParseMessage(const std::string& line);

// "/path/step-00000400 (checkpoint of step 400)"
std::string Describe(const ModelSource& model);

// A text for a JSON document: bytes that are no UTF-8 become U+FFFD.
std::string DumpJson(const nlohmann::json& value);

}  // namespace fedshard::inference
