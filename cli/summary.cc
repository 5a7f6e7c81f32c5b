#include "cli/summary.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "cli/quantity.h"
#include "cli/text.h"
#include "common/spec/validate.h"

namespace fedshard::cli {
namespace {

using nlohmann::ordered_json;

ordered_json OrNull(bool has, double value) {
  return has && std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

std::string Perplexity(const v1::JobResult& result) {
  return result.has_validation_loss_last() ? Fixed(std::exp(result.validation_loss_last()), 2)
                                           : "-";
}

// Byte-level tokens as text; control bytes other than newlines are shown as dots.
std::string SampleText(const v1::JobResult& result) {
  std::string text;
  for (const uint32_t token : result.sample_tokens()) {
    if (token > 255) return "";  // Another tokenizer's: not ours to decode.
    const char c = static_cast<char>(token);
    text += token >= 32 || c == '\n' || c == '\t' ? c : '.';
  }
  return text;
}

}  // namespace

ordered_json SummaryJson(const v1::Job& job, const std::string& log_directory) {
  const v1::JobResult& r = job.result();
  const v1::MeshSpec& mesh = job.spec().mesh();
  return {
      {"name", LastPart(job.name())},
      {"state", StateName(job.state())},
      {"mode", MeshModeName(mesh.mode())},
      {"mesh",
       {{"federation_groups", mesh.federation_groups()},
        {"replicas", mesh.replicas()},
        {"shards", mesh.shards()}}},
      {"steps", r.steps()},
      {"tokens", r.tokens()},
      {"rounds_committed", r.rounds_committed()},
      {"rounds_aborted", r.rounds_aborted()},
      {"skipped_steps", job.progress().skipped_steps()},
      {"checkpoint", job.progress().checkpoint().empty()
                         ? ordered_json(nullptr)
                         : ordered_json(job.progress().checkpoint())},
      {"train_loss",
       {{"first", OrNull(r.has_train_loss_first(), r.train_loss_first())},
        {"last", OrNull(r.has_train_loss_last(), r.train_loss_last())}}},
      {"validation_loss",
       {{"first", OrNull(r.has_validation_loss_first(), r.validation_loss_first())},
        {"last", OrNull(r.has_validation_loss_last(), r.validation_loss_last())}}},
      {"validation_perplexity",
       OrNull(r.has_validation_loss_last(), std::exp(r.validation_loss_last()))},
      {"tokens_per_second", r.tokens_per_second()},
      {"wall_seconds", r.wall_seconds()},
      {"bytes_per_rank_per_step",
       {{"shard", r.bytes_per_rank_per_step().shard()},
        {"replica", r.bytes_per_rank_per_step().replica()},
        {"federation", r.bytes_per_rank_per_step().federation()}}},
      {"parameters", r.parameters()},
      {"padded_parameters", r.padded_parameters()},
      {"parameter_hash", r.parameter_hash()},
      {"log_directory",
       log_directory.empty() ? ordered_json(nullptr) : ordered_json(log_directory)},
  };
}

std::string SummaryText(const v1::Job& job) {
  const v1::JobResult& r = job.result();
  const auto arrow = [](bool has, double first, double last) {
    return has ? absl::StrCat(Fixed(first, 4), " -> ", Fixed(last, 4)) : std::string("-");
  };
  const v1::TierBytes& bytes = r.bytes_per_rank_per_step();
  std::vector<std::vector<std::string>> rows = {
      {"Job", LastPart(job.name()), StateName(job.state())},
      {"Mesh", MeshText(job.spec().mesh())},
      {"Steps", absl::StrCat(r.steps()),
       absl::StrCat(r.rounds_committed(), " rounds committed, ", r.rounds_aborted(), " aborted")},
      {"Tokens", absl::StrCat(r.tokens()),
       absl::StrCat(ShortCount(r.tokens_per_second()), " tokens/s")},
      {"Train loss", arrow(r.has_train_loss_last(), r.train_loss_first(), r.train_loss_last())},
      {"Validation loss",
       arrow(r.has_validation_loss_last(), r.validation_loss_first(), r.validation_loss_last()),
       absl::StrCat("perplexity ", Perplexity(r))},
      {"Sent per rank and step", absl::StrCat(ShortCount(bytes.shard()), "B in the shard group"),
       absl::StrCat(ShortCount(bytes.replica()), "B to replicas"),
       absl::StrCat(ShortCount(bytes.federation()), "B between groups")},
      {"Parameters", absl::StrCat(r.parameters()), absl::StrCat("hash ", r.parameter_hash())},
      {"Wall time", ShortSeconds(r.wall_seconds())},
  };
  const v1::JobProgress& progress = job.progress();
  if (progress.skipped_steps() > 0) {
    rows.push_back({"Skipped steps", absl::StrCat(progress.skipped_steps(), ", not finite")});
  }
  if (!progress.checkpoint().empty()) rows.push_back({"Checkpoint", progress.checkpoint()});
  for (const v1::Condition& condition : job.conditions()) {
    if (condition.reason() == "CHECKPOINT_FAILED" && !condition.active()) {
      rows.push_back({"Last checkpoint", absl::StrCat("failed: ", condition.message())});
    }
  }
  std::string text = Table(rows);
  const std::string sample = SampleText(r);
  if (!sample.empty()) absl::StrAppend(&text, "\nA sample from the final model:\n", sample, "\n");
  return text;
}

}  // namespace fedshard::cli
