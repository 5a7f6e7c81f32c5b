#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/data/token_file.h"
#include "worker/inference/command_parts.h"
#include "worker/inference/commands.h"
#include "worker/inference/rank_group.h"

namespace fedshard::inference {
namespace {

constexpr int64_t kDefaultLength = 1024;  // As in job files.

absl::StatusOr<int64_t> SequenceLength(const EvalOptions& options, const ModelConfig& model) {
  if (options.sequence_length == 0) {
    return std::min(kDefaultLength, model.max_position_embeddings);
  }
  if (options.sequence_length > model.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sequence-length: ", options.sequence_length, " is more than the model's ",
                     "max_position_embeddings = ", model.max_position_embeddings));
  }
  return options.sequence_length;
}

// Everything that can be wrong is found here, before a process is started.
absl::StatusOr<EvaluationPlan> Plan(const EvalOptions& options, const ModelConfig& model,
                                    const data::TokenFile& tokens) {
  EvaluationPlan plan;
  plan.data = std::filesystem::absolute(options.data).string();
  ASSIGN_OR_RETURN(plan.sequence_length, SequenceLength(options, model));
  RETURN_IF_ERROR(tokens.CheckFits(model.vocab_size, plan.sequence_length + 1));
  plan.windows = (tokens.info().count - 1) / plan.sequence_length;
  if (options.sequences > 0) plan.windows = std::min(plan.windows, options.sequences);
  plan.micro_batch = std::min(options.micro_batch, plan.windows);
  return plan;
}

// Follows the first rank: progress on a terminal, and the result.
class Listener {
 public:
  explicit Listener(int64_t windows) : windows_(windows), terminal_(isatty(STDERR_FILENO) == 1) {}

  absl::Status See(const std::string& line) {
    ASSIGN_OR_RETURN(const nlohmann::json message, ParseMessage(line));
    if (message.contains("loss_sum")) result_ = message;
    if (message.contains("windows") && terminal_) {
      std::cerr << "\r" << message.value("windows", int64_t{0}) << " of " << windows_ << " windows"
                << std::flush;
      shown_ = true;
    }
    return absl::OkStatus();
  }
  void ClearProgress() {
    if (shown_) std::cerr << "\r\033[K" << std::flush;
  }
  const nlohmann::json& result() const { return result_; }

 private:
  const int64_t windows_;
  const bool terminal_;
  bool shown_ = false;
  nlohmann::json result_;
};

struct Report {
  std::string model, data;
  std::optional<int64_t> step;
  EvaluationPlan plan;
  int ranks = 1;
  int64_t tokens = 0;
  double loss = 0;  // Nats per token.
  double seconds = 0;
  bool bytes = false;  // Tokens are bytes.
};

std::string ToText(const Report& report) {
  std::string text =
      absl::StrCat("model            ", report.model, "\n", "data             ", report.data, "\n");
  absl::StrAppend(&text, "windows          ", report.plan.windows, " of ",
                  report.plan.sequence_length, " tokens\n");
  absl::StrAppend(&text, "tokens           ", report.tokens, "\n");
  absl::StrAppendFormat(&text, "loss             %.6f nats per token\n", report.loss);
  absl::StrAppendFormat(&text, "perplexity       %.6g\n", std::exp(report.loss));
  if (report.bytes) {
    absl::StrAppendFormat(&text, "bits per byte    %.6f\n", report.loss / std::log(2.0));
  }
  absl::StrAppendFormat(&text, "speed            %.0f tokens/s on %d rank%s\n",
                        static_cast<double>(report.tokens) / report.seconds, report.ranks,
                        report.ranks == 1 ? "" : "s");
  return text;
}

nlohmann::json ToJson(const Report& report, const ModelSource& model) {
  nlohmann::json json = {
      {"model", model.path},
      {"data", report.data},
      {"sequence_length", report.plan.sequence_length},
      {"windows", report.plan.windows},
      {"tokens", report.tokens},
      {"loss", report.loss},
      {"perplexity", std::exp(report.loss)},
      {"ranks", report.ranks},
      {"seconds", report.seconds},
      {"tokens_per_second", static_cast<double>(report.tokens) / report.seconds}};
  if (report.step) json["step"] = *report.step;
  if (report.bytes) json["bits_per_byte"] = report.loss / std::log(2.0);
  return json;
}

}  // namespace

absl::Status RunEval(const EvalOptions& options) {
  ASSIGN_OR_RETURN(const ModelSource model, OpenModelFor(options.common));
  ASSIGN_OR_RETURN(const auto tokens, data::TokenFile::Open(options.data, /*verify=*/true));
  ASSIGN_OR_RETURN(const EvaluationPlan plan, Plan(options, model.config, *tokens));
  if (tokens->info().vocabulary != model.config.vocab_size) {
    Warn(absl::StrCat(options.data, ": its vocabulary of ", tokens->info().vocabulary,
                      " is not the model's vocab_size = ", model.config.vocab_size,
                      "; is it of the same tokenizer?"));
  }
  ASSIGN_OR_RETURN(const PrivateFolder folder, PrivateFolder::Make());
  RankTask task = TaskFor(options.common, model, folder.path());
  task.evaluation = plan;
  Listener listener(plan.windows);
  const absl::Status ran =
      RunRanks(task, [&](const std::string& line) { return listener.See(line); });
  listener.ClearProgress();
  RETURN_IF_ERROR(ran);
  const nlohmann::json& result = listener.result();
  if (!result.is_object()) return absl::InternalError("the first rank ended without a result");

  Report report;
  report.model = Describe(model);
  report.data = options.data;
  report.step = model.step;
  report.plan = plan;
  report.ranks = options.common.ranks;
  report.tokens = result.value("tokens", int64_t{0});
  report.loss = result.value("loss_sum", 0.0) / static_cast<double>(report.tokens);
  report.seconds = result.value("seconds", 0.0);
  report.bytes = tokens->info().tokenizer == "bytes";
  std::cout << (options.common.json ? DumpJson(ToJson(report, model)) + "\n" : ToText(report))
            << std::flush;
  return absl::OkStatus();
}

}  // namespace fedshard::inference
