#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/inference/command_parts.h"
#include "worker/inference/commands.h"
#include "worker/inference/rank_group.h"
#include "worker/inference/text_codec.h"

namespace fedshard::inference {
namespace {

constexpr int64_t kDefaultTokens = 200;  // As in job files.
constexpr int64_t kByteVocabulary = 256;

// How this model's text is written in tokens; null when nobody knows.
std::unique_ptr<TextCodec> CodecFor(const GenerateOptions& options, const ModelSource& model,
                                    const std::string& folder) {
  const std::string own = model.path + "/tokenizer.json";
  const std::string file = !options.tokenizer.empty()     ? options.tokenizer
                           : std::filesystem::exists(own) ? own
                                                          : "";
  if (!file.empty()) return MakeTokenizerCodec(file, !options.raw_prompt, folder);
  return model.config.vocab_size == kByteVocabulary ? MakeByteCodec() : nullptr;
}

absl::StatusOr<std::vector<int64_t>> Prompt(const GenerateOptions& options,
                                            const ModelConfig& model, TextCodec* codec) {
  std::vector<int64_t> prompt = options.prompt_tokens;
  if (prompt.empty()) {
    if (options.prompt.empty()) {
      return absl::InvalidArgumentError("give something to continue: --prompt or --prompt-tokens");
    }
    if (codec == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt: the model has vocab_size = ", model.vocab_size,
                       ", so its tokens are no bytes; give --tokenizer or --prompt-tokens"));
    }
    ASSIGN_OR_RETURN(prompt, codec->Encode(options.prompt));
    if (prompt.empty()) return absl::InvalidArgumentError("--prompt: has no tokens");
  }
  for (const int64_t token : prompt) {
    if (token >= model.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.prompt_tokens.empty() ? "--prompt" : "--prompt-tokens", ": token ",
                       token, " is beyond the model's vocab_size = ", model.vocab_size));
    }
  }
  return prompt;
}

absl::StatusOr<GenerationPlan> Plan(const GenerateOptions& options, const ModelSource& model,
                                    TextCodec* codec) {
  GenerationPlan plan;
  ASSIGN_OR_RETURN(plan.prompt, Prompt(options, model.config, codec));
  const int64_t length = static_cast<int64_t>(plan.prompt.size());
  const int64_t room = model.config.max_position_embeddings - length;
  if (room < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", length, " tokens, but the model's ",
                     "max_position_embeddings = ", model.config.max_position_embeddings));
  }
  if (options.tokens > room) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokens: ", options.tokens, " after a prompt of ", length, " is more than the model's ",
        "max_position_embeddings = ", model.config.max_position_embeddings, "; at most ", room));
  }
  plan.tokens = options.tokens > 0 ? options.tokens : std::min(kDefaultTokens, room);
  plan.samples = options.samples;
  plan.sampling = {options.temperature, options.top_p};
  plan.seed = options.seed;
  plan.stop_tokens = model.stop_tokens;
  plan.stop_tokens.insert(plan.stop_tokens.end(), options.stop_tokens.begin(),
                          options.stop_tokens.end());
  return plan;
}

// Collects what the first rank says; a single text of bytes is shown as it comes.
class Listener {
 public:
  Listener(const GenerationPlan& plan, TextCodec* streaming)
      : streaming_(streaming), texts_(plan.samples), stopped_(plan.samples, false) {}

  absl::Status See(const std::string& line) {
    ASSIGN_OR_RETURN(const nlohmann::json message, ParseMessage(line));
    if (message.contains("prompt_seconds")) times_ = message;
    if (!message.contains("next")) return absl::OkStatus();
    const auto next = message["next"].get<std::vector<int64_t>>();
    for (size_t i = 0; i < texts_.size() && i < next.size(); ++i) {
      if (next[i] < 0) {
        stopped_[i] = true;
      } else {
        texts_[i].push_back(next[i]);
      }
    }
    if (streaming_ == nullptr || next[0] < 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string piece, streaming_->Decode({next[0]}));
    std::cout << piece << std::flush;
    // Nobody reads any more, as in `| head`.
    return std::cout ? absl::OkStatus() : absl::CancelledError("standard output is closed");
  }

  const std::vector<std::vector<int64_t>>& texts() const { return texts_; }
  bool stopped(size_t sample) const { return stopped_[sample]; }
  const nlohmann::json& times() const { return times_; }

 private:
  TextCodec* const streaming_;
  std::vector<std::vector<int64_t>> texts_;
  std::vector<bool> stopped_;
  nlohmann::json times_;
};

absl::StatusOr<nlohmann::json> ToJson(const Listener& listener, const GenerationPlan& plan,
                                      const ModelSource& model, TextCodec* codec) {
  nlohmann::json samples = nlohmann::json::array();
  int64_t steps = 0;
  for (size_t i = 0; i < listener.texts().size(); ++i) {
    const std::vector<int64_t>& tokens = listener.texts()[i];
    nlohmann::json sample = {{"tokens", tokens},
                             {"ended_by", listener.stopped(i) ? "stop token" : "length"}};
    if (codec != nullptr) {
      ASSIGN_OR_RETURN(const std::string text, codec->Decode(tokens));
      sample["text"] = text;
    }
    steps = std::max(steps, static_cast<int64_t>(tokens.size()));
    samples.push_back(std::move(sample));
  }
  const double prompt_seconds = listener.times().value("prompt_seconds", 0.0);
  const double seconds = listener.times().value("seconds", 0.0) - prompt_seconds;
  nlohmann::json json = {{"model", model.path},
                         {"prompt_tokens", plan.prompt},
                         {"samples", samples},
                         {"seed", plan.seed},
                         {"prompt_seconds", prompt_seconds},
                         {"seconds_per_token", steps > 1 ? seconds / (steps - 1) : 0.0}};
  if (model.step) json["step"] = *model.step;
  return json;
}

// Prompt and continuation of each sample; ids where there is no text.
absl::Status PrintTexts(const Listener& listener, const GenerationPlan& plan,
                        const GenerateOptions& options, TextCodec* codec) {
  for (const std::vector<int64_t>& tokens : listener.texts()) {
    if (codec == nullptr) {
      std::string line;
      for (const int64_t token : tokens) absl::StrAppend(&line, line.empty() ? "" : " ", token);
      std::cout << line << "\n";
      continue;
    }
    std::vector<int64_t> all = plan.prompt;
    all.insert(all.end(), tokens.begin(), tokens.end());
    ASSIGN_OR_RETURN(const std::string text, codec->Decode(all));
    std::cout << text << "\n" << (options.samples > 1 ? "---\n" : "");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGenerate(const GenerateOptions& options) {
  ASSIGN_OR_RETURN(const ModelSource model, OpenModelFor(options.common));
  ASSIGN_OR_RETURN(const PrivateFolder folder, PrivateFolder::Make());
  const std::unique_ptr<TextCodec> codec = CodecFor(options, model, folder.path());
  ASSIGN_OR_RETURN(const GenerationPlan plan, Plan(options, model, codec.get()));
  RankTask task = TaskFor(options.common, model, folder.path());
  task.generates = true;
  task.generation = plan;
  const bool streams =
      codec != nullptr && codec->by_parts() && !options.common.json && options.samples == 1;
  if (streams) {
    ASSIGN_OR_RETURN(const std::string prompt, codec->Decode(plan.prompt));
    std::cout << prompt << std::flush;
  }
  Listener listener(plan, streams ? codec.get() : nullptr);
  const absl::Status ran =
      RunRanks(task, [&](const std::string& line) { return listener.See(line); });
  if (streams) std::cout << std::endl;
  RETURN_IF_ERROR(ran);
  if (!listener.times().is_object()) {
    return absl::InternalError("the first rank ended without a result");
  }
  if (options.common.json) {
    ASSIGN_OR_RETURN(const nlohmann::json json, ToJson(listener, plan, model, codec.get()));
    std::cout << DumpJson(json) << std::endl;
  } else if (!streams) {
    RETURN_IF_ERROR(PrintTexts(listener, plan, options, codec.get()));
  }
  return absl::OkStatus();
}

}  // namespace fedshard::inference
