// fedshard plan memory: what a job will need, from its file alone.
#pragma once

#include <string>

#include "fedshard/v1/job.pb.h"
#include "planner/memory.h"

namespace CLI {
class App;
}

namespace fedshard::cli {

// What the formula wants to know about a complete spec. Throws std::invalid_argument when its model
// is none.
planner::MemoryOptions MemoryOptionsOf(const v1::JobSpec& spec);

// Prints the memory of one rank of the job in `file`. Returns the exit code.
int RunPlanMemory(const std::string& file, bool json);

// `exit_code` is set when a command runs; it outlives the parsing.
void AddPlan(CLI::App& app, int& exit_code);

}  // namespace fedshard::cli
