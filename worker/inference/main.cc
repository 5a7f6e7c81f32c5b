// fedshard-model: evaluates models and generates text on this machine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "common/version.h"
#include "worker/inference/commands.h"
#include "worker/inference/exit_codes.h"
#include "worker/inference/options.h"
#include "worker/inference/rank.h"
#include "worker/inference/rank_group.h"

namespace fedshard::inference {
namespace {

constexpr char kHelp[] =
    R"(Evaluates models and generates text on this machine. Run by fedshard eval and fedshard generate.

Examples:
  fedshard-model eval checkpoints/step-00000400 --data validation.bin --ranks 2
  fedshard-model generate checkpoints/step-00000400 --prompt "ROMEO:" --temperature 0
)";

int Conclude(const absl::Status& status) {
  if (!status.ok()) std::cerr << "fedshard: " << status.message() << std::endl;
  return ExitCodeOf(status);
}

// A process of RunRanks.
int RunRankFrom(const std::string& file, int rank) {
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto task = ParseTask(text);
  if (!task.ok()) {
    std::cerr << file << ": " << task.status().message() << std::endl;
    return kExitFailed;
  }
  const int exit_code = RunRank(*task, rank);
  // Model and process group are gone; nothing that is left needs destructors.
  std::cout.flush();
  _exit(exit_code);
}

int Main(int argc, char** argv) {
  CLI::App app(kHelp, "fedshard-model");
  app.set_version_flag("--version", VersionText("fedshard-model"));
  app.require_subcommand(1);
  int exit_code = kExitDone;
  EvalOptions eval_options;
  CLI::App* eval = app.add_subcommand("eval", "Loss and perplexity on a token file");
  AddEvalOptions(*eval, /*jobs=*/false, eval_options);
  eval->callback([&] {
    BlockSignals();
    exit_code = Conclude(RunEval(eval_options));
  });
  GenerateOptions generate_options;
  CLI::App* generate = app.add_subcommand("generate", "Continue a text");
  AddGenerateOptions(*generate, /*jobs=*/false, generate_options);
  generate->callback([&] {
    BlockSignals();
    exit_code = Conclude(RunGenerate(generate_options));
  });
  std::string file;
  int rank_number = 0;
  CLI::App* rank = app.add_subcommand("rank", "One process of a run")->group("");
  rank->add_option("TASK", file)->required();
  rank->add_option("RANK", rank_number)->required();
  rank->callback([&] { exit_code = RunRankFrom(file, rank_number); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace fedshard::inference

int main(int argc, char** argv) { return fedshard::inference::Main(argc, argv); }
