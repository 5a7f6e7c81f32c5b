// The reports of ranks that one script line stands for.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/commands.h"
#include "coordinator/core/state.h"
#include "tests/scenarios/arguments.h"

namespace fedshard::core {

// One command for each rank or group named. Senders and defaults are what the state says is true.
// INVALID_ARGUMENT for an unknown verb or argument.
absl::StatusOr<std::vector<Command>> BuildReports(const State& state, const std::string& verb,
                                                  const JobId& job, Arguments arguments);

}  // namespace fedshard::core
