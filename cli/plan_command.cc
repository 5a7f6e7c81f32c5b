#include "cli/plan_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/exit_codes.h"
#include "cli/job_file.h"
#include "cli/text.h"
#include "common/spec/model_config_json.h"

namespace fedshard::cli {
namespace {

std::string MebiBytes(int64_t bytes) { return Fixed(static_cast<double>(bytes) / (1 << 20), 1); }

int MomentsOf(const v1::OptimizerSpec& optimizer) {
  if (optimizer.type() != v1::OPTIMIZER_TYPE_SGD) return 2;
  return optimizer.momentum() != 0 ? 1 : 0;
}

int OuterMomentsOf(const v1::OuterOptimizerSpec& optimizer) {
  switch (optimizer.type()) {
    case v1::OUTER_OPTIMIZER_TYPE_MOMENTUM:
    case v1::OUTER_OPTIMIZER_TYPE_NESTEROV:
      return 1;
    case v1::OUTER_OPTIMIZER_TYPE_ADAM:
      return 2;
    default:
      return 0;
  }
}

planner::Recompute RecomputeOf(v1::Recompute recompute) {
  switch (recompute) {
    case v1::RECOMPUTE_BLOCK:
      return planner::Recompute::kBlock;
    case v1::RECOMPUTE_SELECTIVE:
      return planner::Recompute::kSelective;
    default:
      return planner::Recompute::kNone;
  }
}

std::string Json(const v1::JobSpec& spec, const planner::MemoryPlan& plan) {
  nlohmann::ordered_json items = nlohmann::ordered_json::array();
  for (const planner::MemoryItem& item : plan.items) {
    items.push_back({{"name", item.name},
                     {"bytes", item.bytes},
                     {"in_step", item.in_step},
                     {"what", item.what}});
  }
  const nlohmann::ordered_json all = {
      {"mesh", MeshText(spec.mesh())},
      {"items", items},
      {"step_bytes", plan.step()},
      {"total_bytes", plan.total()},
      {"process_bytes", planner::kProcessBytes},
      {"with_process_bytes", plan.total() + planner::kProcessBytes}};
  return all.dump(2) + "\n";
}

std::string AsTable(const v1::JobSpec& spec, const planner::MemoryPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"MEMORY OF A RANK", "MIB", "WHAT"}};
  bool in_step = true;
  const auto add = [&](const std::string& name, int64_t bytes, const std::string& what) {
    rows.push_back({name, MebiBytes(bytes), what});
  };
  for (const planner::MemoryItem& item : plan.items) {
    if (in_step && !item.in_step) {
      add("= in a step", plan.step(), "peak of tensors while it trains");
      in_step = false;
    }
    add(item.name, item.bytes, item.what);
  }
  add("= tensors", plan.total(), absl::StrCat("peak, ", MeshText(spec.mesh())));
  add("process", planner::kProcessBytes, "programs and libraries, about");
  add("= rank", plan.total() + planner::kProcessBytes, "");
  return Table(rows);
}

}  // namespace

planner::MemoryOptions MemoryOptionsOf(const v1::JobSpec& spec) {
  const auto model = ParseModelConfig(spec.model().config_json());
  if (!model.ok()) throw std::invalid_argument(std::string(model.status().message()));
  const v1::TrainingSpec& training = spec.training();
  const v1::FederationSpec& federation = spec.federation();
  planner::MemoryOptions options;
  options.model = *model;
  options.groups = spec.mesh().federation_groups();
  options.replicas = spec.mesh().replicas();
  options.shards = spec.mesh().shards();
  options.sequence_length = spec.data().sequence_length();
  options.micro_batch = training.micro_batch();
  options.accumulation = training.accumulation();
  options.bf16 = training.precision() == v1::PRECISION_BF16;
  options.gather_bf16 = training.gather_precision() == v1::PRECISION_UNSPECIFIED
                            ? options.bf16
                            : training.gather_precision() == v1::PRECISION_BF16;
  options.reduce_bf16 = training.reduce_precision() == v1::PRECISION_BF16;
  options.accumulate_locally = training.accumulate() == v1::ACCUMULATE_LOCAL;
  options.recompute = RecomputeOf(training.recompute());
  options.moments = MomentsOf(training.optimizer());
  options.bf16_moments = training.optimizer().moments() == v1::PRECISION_BF16;
  options.outer_moments = OuterMomentsOf(federation.outer_optimizer());
  options.compression = federation.compression() == v1::COMPRESSION_BF16 ||
                        federation.compression() == v1::COMPRESSION_INT8;
  options.overlap = federation.overlap_steps() > 0;
  options.outer_base = options.compression || options.outer_moments > 0;
  options.chunk_bytes = federation.chunk_bytes();
  options.checkpoints = !spec.checkpoint().directory().empty();
  return options;
}

int RunPlanMemory(const std::string& file, bool json) {
  const auto spec = ReadJobFile(file);
  if (!spec.ok()) {
    std::cerr << "fedshard: " << spec.status().message() << "\n";
    return absl::IsNotFound(spec.status()) ? kExitNotFound : kExitUsage;
  }
  try {
    const planner::MemoryPlan plan = planner::PlanMemory(MemoryOptionsOf(*spec));
    std::cout << (json ? Json(*spec, plan) : AsTable(*spec, plan));
    return kExitDone;
  } catch (const std::invalid_argument& error) {
    std::cerr << "fedshard: " << file << ": " << error.what() << "\n";
    return kExitUsage;
  }
}

void AddPlan(CLI::App& app, int& exit_code) {
  CLI::App* plan = app.add_subcommand("plan", "What a job will need, before it runs: memory");
  plan->require_subcommand(1);
  struct Arguments {
    std::string file;
    std::string output = "table";
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* memory = plan->add_subcommand("memory", "Peak memory of one rank, item by item");
  memory->add_option("FILE", arguments->file, "Job file")->required();
  memory->add_option("-o,--output", arguments->output, "Form of the answer")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  memory->callback([&exit_code, arguments] {
    exit_code = RunPlanMemory(arguments->file, arguments->output == "json");
  });
}

}  // namespace fedshard::cli
