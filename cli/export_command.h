// fedshard export: a checkpoint as a Hugging Face folder.
#pragma once

#include <string>

#include "cli/commands.h"

namespace CLI {
class App;
}

namespace fedshard::cli {

struct ExportCommand {
  std::string what;  // A job, or a checkpoint's folder.
  std::string out;
  std::string dtype = "f32";  // f32, bf16, f16.
  std::string tokenizer;      // Folder; empty = that of the weights a job began with.
  std::string max_file_size = "5GB";
};

int RunExport(const GlobalOptions& global, const ExportCommand& command);

// `global` is read and `exit_code` set when the command runs; both outlive the parsing.
void AddExport(CLI::App& app, const GlobalOptions& global, int& exit_code);

}  // namespace fedshard::cli
