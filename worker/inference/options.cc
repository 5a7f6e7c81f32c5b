#include "worker/inference/options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace fedshard::inference {
namespace {

constexpr int64_t kMany = int64_t{1} << 40;

void AddCommonOptions(CLI::App& command, bool jobs, CommonOptions& options) {
  command
      .add_option("MODEL", options.model,
                  absl::StrCat(
                      "A checkpoint, a folder of checkpoints (its newest) or a Hugging Face folder",
                      jobs ? "; or a job (its newest)" : ""))
      ->required();
  command.add_option("--ranks", options.ranks, "Processes that hold a shard of the model each")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--threads", options.threads, "Of each rank [the CPUs divided by the ranks]")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--timeout", options.timeout_s,
                  "Seconds without any progress after which all ranks are ended")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "-o,--output", [&options](const std::string& format) { options.json = format == "json"; },
          "table or json [table]")
      ->check(CLI::IsMember({"table", "json"}));
}

std::vector<std::string> CommonArguments(const std::string& command, const CommonOptions& options) {
  std::vector<std::string> arguments = {command, absl::StrCat("--ranks=", options.ranks),
                                        absl::StrCat("--timeout=", options.timeout_s),
                                        absl::StrCat("--output=", options.json ? "json" : "table")};
  if (options.threads > 0) arguments.push_back(absl::StrCat("--threads=", options.threads));
  return arguments;
}

}  // namespace

void AddEvalOptions(CLI::App& command, bool jobs, EvalOptions& options) {
  AddCommonOptions(command, jobs, options.common);
  CLI::Option* data = command.add_option(
      "--data", options.data,
      absl::StrCat("Token file", jobs ? " [of a job: its validation file]" : ""));
  if (!jobs) data->required();
  command
      .add_option("--sequence-length", options.sequence_length,
                  absl::StrCat("Tokens of a window [", jobs ? "of a job: its own; else " : "",
                               "1024, or what the model takes]"))
      ->check(CLI::Range(int64_t{1}, kMany));
  command.add_option("--sequences", options.sequences, "Only the first N windows [all]")
      ->check(CLI::Range(int64_t{1}, kMany));
  command.add_option("--micro-batch", options.micro_batch, "Windows computed at once by a rank")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
}

void AddGenerateOptions(CLI::App& command, bool jobs, GenerateOptions& options) {
  AddCommonOptions(command, jobs, options.common);
  CLI::Option* prompt = command.add_option("--prompt", options.prompt, "Text to continue");
  command.add_option("--prompt-tokens", options.prompt_tokens, "Its tokens: 1,2,3")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{0}, kMany))
      ->excludes(prompt);
  command.add_option("--tokenizer", options.tokenizer,
                     "A Hugging Face tokenizer.json [the one in the model's folder; else bytes]");
  command.add_flag("--raw-prompt", options.raw_prompt,
                   "Do not add the tokenizer's special tokens to the prompt");
  command
      .add_option("--tokens", options.tokens, "Tokens to add [200, or what the model has room for]")
      ->check(CLI::Range(int64_t{1}, kMany));
  command.add_option("--samples", options.samples, "Continuations, computed together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option("--temperature", options.temperature, "0 = greedy: the likeliest token, always")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--top-p", options.top_p,
                  "Draw only from the likeliest tokens that have this probability together")
      ->check(CLI::Range(1e-9, 1.0))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of the draws; sample i takes seed + i")
      ->capture_default_str();
  command
      .add_option("--stop-tokens", options.stop_tokens,
                  "Tokens that end the text, besides eos_token_id of the model's config.json")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{0}, kMany));
}

std::vector<std::string> ToArguments(const EvalOptions& options) {
  std::vector<std::string> arguments = CommonArguments("eval", options.common);
  if (!options.data.empty()) arguments.push_back(absl::StrCat("--data=", options.data));
  if (options.sequence_length > 0) {
    arguments.push_back(absl::StrCat("--sequence-length=", options.sequence_length));
  }
  if (options.sequences > 0) arguments.push_back(absl::StrCat("--sequences=", options.sequences));
  arguments.push_back(absl::StrCat("--micro-batch=", options.micro_batch));
  arguments.insert(arguments.end(), {"--", options.common.model});
  return arguments;
}

std::vector<std::string> ToArguments(const GenerateOptions& options) {
  std::vector<std::string> arguments = CommonArguments("generate", options.common);
  if (!options.prompt_tokens.empty()) {
    arguments.push_back(
        absl::StrCat("--prompt-tokens=", absl::StrJoin(options.prompt_tokens, ",")));
  } else if (!options.prompt.empty()) {
    arguments.push_back(absl::StrCat("--prompt=", options.prompt));
  }
  if (!options.tokenizer.empty()) {
    arguments.push_back(absl::StrCat("--tokenizer=", options.tokenizer));
  }
  if (options.raw_prompt) arguments.push_back("--raw-prompt");
  if (options.tokens > 0) arguments.push_back(absl::StrCat("--tokens=", options.tokens));
  arguments.push_back(absl::StrCat("--samples=", options.samples));
  arguments.push_back(absl::StrFormat("--temperature=%.17g", options.temperature));
  arguments.push_back(absl::StrFormat("--top-p=%.17g", options.top_p));
  arguments.push_back(absl::StrCat("--seed=", options.seed));
  if (!options.stop_tokens.empty()) {
    arguments.push_back(absl::StrCat("--stop-tokens=", absl::StrJoin(options.stop_tokens, ",")));
  }
  arguments.insert(arguments.end(), {"--", options.common.model});
  return arguments;
}

}  // namespace fedshard::inference
