// Jobs that wait for slots: first in, first out. A job that cannot run on the registered nodes at
// all is passed over; one that merely does not fit now holds back the jobs behind it, so that small
// jobs cannot starve a large one.
#pragma once

#include <optional>
#include <string>

#include "coordinator/core/transition.h"

namespace fedshard::core {

// Starts every queued job whose turn it is and refreshes the reasons of those that still wait.
void PlaceQueued(Transition& t);

// What would become of a job of this mesh if it were submitted now: nothing = it would start, else
// why it would wait.
std::optional<std::string> WhyItWouldWait(const State& state, const Mesh& mesh);

}  // namespace fedshard::core
