// fedshard eval and fedshard generate: find out where the model is, then become fedshard-model.
#pragma once

#include "cli/commands.h"
#include "worker/inference/options.h"

namespace CLI {
class App;
}

namespace fedshard::cli {

// `options.common.model`: a path, or the name of a job, whose newest checkpoint is meant; its
// validation file and sequence length are then the defaults. Return only when the program cannot be
// started, with the exit code.
int RunEval(const GlobalOptions& global, inference::EvalOptions options);
int RunGenerate(const GlobalOptions& global, inference::GenerateOptions options);

// `global` is read and `exit_code` set when a command runs; both outlive the parsing.
void AddModelCommands(CLI::App& app, const GlobalOptions& global, int& exit_code);

}  // namespace fedshard::cli
