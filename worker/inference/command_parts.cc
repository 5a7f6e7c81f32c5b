#include "worker/inference/command_parts.h"

#include <algorithm>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace fedshard::inference {

void Warn(const std::string& message) { std::cerr << "fedshard: " << message << std::endl; }

absl::StatusOr<ModelSource> OpenModelFor(const CommonOptions& options) {
  std::vector<std::string> skipped;
  absl::StatusOr<ModelSource> model = OpenModel(options.model, skipped);
  for (const std::string& error : skipped) Warn(absl::StrCat("passed over: ", error));
  return model;
}

RankTask TaskFor(const CommonOptions& options, const ModelSource& model,
                 const std::string& folder) {
  RankTask task;
  task.folder = folder;
  task.model = model.path;
  task.ranks = options.ranks;
  const int cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  task.threads = options.threads > 0 ? options.threads : std::max(1, cpus / options.ranks);
  task.timeout_s = options.timeout_s;
  return task;
}

absl::StatusOr<nlohmann::json> ParseMessage(const std::string& line) {
  nlohmann::json message = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!message.is_object()) {
    return absl::InternalError(absl::StrCat("the first rank wrote \"", line, "\""));
  }
  return message;
}

std::string Describe(const ModelSource& model) {
  return model.step ? absl::StrCat(model.path, " (checkpoint of step ", *model.step, ")")
                    : absl::StrCat(model.path, " (Hugging Face)");
}

std::string DumpJson(const nlohmann::json& value) {
  return value.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fedshard::inference
