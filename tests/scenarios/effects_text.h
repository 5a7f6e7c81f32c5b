// Effects and state as lines of text, the way scenario scripts show them.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/core.h"

namespace fedshard::core {

// One line for each reply, directive, dropped scope and event, in this order. Records and the timer
// are not shown here.
std::vector<std::string> FormatEffects(const Effects& effects);

// The command's name that a record holds, e.g. "RankVote".
std::string RecordName(const Record& record);

// Jobs, groups and slots in a few lines.
std::vector<std::string> FormatState(const State& state);

// "12s", "0.25s".
std::string FormatSeconds(int64_t us);

}  // namespace fedshard::core
