// fedshard plan memory: what a job's ranks will need, before it runs anywhere.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace fedshard::cli {

// `json`: one object instead of a table.
int RunPlanMemory(const std::string& job_file, bool json);

// `exit_code` is set when the command runs; it outlives the parsing.
void AddPlan(CLI::App& app, int& exit_code);

}  // namespace fedshard::cli
