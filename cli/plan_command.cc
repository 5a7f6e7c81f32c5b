#include "cli/plan_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/exit_codes.h"
#include "cli/job_file.h"
#include "cli/quantity.h"
#include "cli/text.h"
#include "common/spec/model_config_json.h"
#include "common/spec/validate.h"
#include "planner/memory.h"

namespace fedshard::cli {
namespace {

planner::MemoryInputs InputsOf(const v1::JobSpec& spec, const ModelConfig& model) {
  const v1::TrainingSpec& training = spec.training();
  const v1::FederationSpec& federation = spec.federation();
  const bool adamw = training.optimizer().type() == v1::OPTIMIZER_TYPE_ADAMW;
  planner::MemoryInputs in;
  in.model = model;
  in.mesh = {spec.mesh().federation_groups(), spec.mesh().replicas(), spec.mesh().shards()};
  in.sequence_length = spec.data().sequence_length();
  in.micro_batch = training.micro_batch();
  in.accumulation = training.accumulation();
  in.moments = adamw ? 2 : (training.optimizer().momentum() > 0 ? 1 : 0);
  in.bf16_moments = training.optimizer().moments() == v1::PRECISION_BF16;
  in.bf16 = training.precision() == v1::PRECISION_BF16;
  in.gather_bf16 = training.gather_precision() == v1::PRECISION_UNSPECIFIED
                       ? in.bf16
                       : training.gather_precision() == v1::PRECISION_BF16;
  in.reduce_bf16 = training.reduce_precision() == v1::PRECISION_BF16;
  in.recompute = training.recompute() == v1::RECOMPUTE_BLOCK       ? planner::Recompute::kBlock
                 : training.recompute() == v1::RECOMPUTE_SELECTIVE ? planner::Recompute::kSelective
                                                                   : planner::Recompute::kNone;
  in.accumulate_locally = training.accumulate() == v1::ACCUMULATE_LOCAL;
  in.averages = Averages(spec);
  const v1::OuterOptimizerType outer = federation.outer_optimizer().type();
  in.outer_moments = outer == v1::OUTER_OPTIMIZER_TYPE_ADAM       ? 2
                     : outer == v1::OUTER_OPTIMIZER_TYPE_MOMENTUM ? 1
                     : outer == v1::OUTER_OPTIMIZER_TYPE_NESTEROV ? 1
                                                                  : 0;
  in.compresses = federation.compression() > v1::COMPRESSION_NONE;
  in.chunk_bytes = federation.chunk_bytes();
  in.checkpoints = !spec.checkpoint().directory().empty();
  return in;
}

void PrintJson(const planner::MemoryPlan& plan) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const planner::MemoryPart& part : plan.parts) {
    parts.push_back({{"name", part.name}, {"bytes", part.bytes}, {"what", part.what}});
  }
  std::cout << nlohmann::ordered_json{{"bytes", plan.bytes()}, {"parts", parts}}.dump(2) << "\n";
}

void PrintTable(const planner::MemoryPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"PART", "BYTES", "WHAT"}};
  for (const planner::MemoryPart& part : plan.parts) {
    rows.push_back({part.name, ShortBytes(part.bytes), part.what});
  }
  rows.push_back({"tensors of a rank", ShortBytes(plan.bytes()), "at the peak of a step or round"});
  std::cout << Table(rows);
}

}  // namespace

int RunPlanMemory(const std::string& job_file, bool json) {
  const auto spec = ReadJobFile(job_file);
  if (!spec.ok()) {
    std::cerr << "fedshard: " << spec.status().message() << "\n";
    return kExitUsage;
  }
  const auto model = ParseModelConfig(spec->model().config_json());
  const planner::MemoryPlan plan = planner::PlanMemory(InputsOf(*spec, *model));
  json ? PrintJson(plan) : PrintTable(plan);
  return kExitDone;
}

void AddPlan(CLI::App& app, int& exit_code) {
  CLI::App* plan = app.add_subcommand("plan", "What a job will need: memory FILE");
  plan->require_subcommand(1);
  CLI::App* memory = plan->add_subcommand("memory", "Tensor memory of a rank, part by part");
  auto file = std::make_shared<std::string>();
  auto output = std::make_shared<std::string>("table");
  memory->add_option("FILE", *file, "Job file")->required();
  memory->add_option("-o,--output", *output, "Output format")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  memory->callback(
      [&exit_code, file, output] { exit_code = RunPlanMemory(*file, *output == "json"); });
}

}  // namespace fedshard::cli
