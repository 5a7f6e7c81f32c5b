#include "worker/inference/task.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace fedshard::inference {

using nlohmann::json;

std::string ToJson(const RankTask& task) {
  const EvaluationPlan& e = task.evaluation;
  const GenerationPlan& g = task.generation;
  return json{{"folder", task.folder},
              {"model", task.model},
              {"ranks", task.ranks},
              {"threads", task.threads},
              {"timeout_s", task.timeout_s},
              {"generates", task.generates},
              {"data", e.data},
              {"sequence_length", e.sequence_length},
              {"windows", e.windows},
              {"micro_batch", e.micro_batch},
              {"prompt", g.prompt},
              {"tokens", g.tokens},
              {"samples", g.samples},
              {"temperature", g.sampling.temperature},
              {"top_p", g.sampling.top_p},
              {"seed", g.seed},
              {"stop_tokens", g.stop_tokens}}
      .dump();
}

absl::StatusOr<RankTask> ParseTask(const std::string& text) {
  try {
    const json value = json::parse(text);
    RankTask task;
    value.at("folder").get_to(task.folder);
    value.at("model").get_to(task.model);
    value.at("ranks").get_to(task.ranks);
    value.at("threads").get_to(task.threads);
    value.at("timeout_s").get_to(task.timeout_s);
    value.at("generates").get_to(task.generates);
    value.at("data").get_to(task.evaluation.data);
    value.at("sequence_length").get_to(task.evaluation.sequence_length);
    value.at("windows").get_to(task.evaluation.windows);
    value.at("micro_batch").get_to(task.evaluation.micro_batch);
    value.at("prompt").get_to(task.generation.prompt);
    value.at("tokens").get_to(task.generation.tokens);
    value.at("samples").get_to(task.generation.samples);
    value.at("temperature").get_to(task.generation.sampling.temperature);
    value.at("top_p").get_to(task.generation.sampling.top_p);
    value.at("seed").get_to(task.generation.seed);
    value.at("stop_tokens").get_to(task.generation.stop_tokens);
    return task;
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the task of a rank: ", error.what()));
  }
}

}  // namespace fedshard::inference
