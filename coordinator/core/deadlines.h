// Deadlines: which have passed, what follows, and when to look again.
#pragma once

#include <optional>

#include "coordinator/core/transition.h"

namespace fedshard::core {

// Whether HandleDeadlinesPassed would do anything at `now`.
bool AnyDeadlinePassed(const State& state, Instant now);

// Jobs that start, vote or stop for too long, and failures whose explanation did not come.
void HandleDeadlinesPassed(Transition& t);

// The earliest deadline of any node or job.
std::optional<int64_t> NextDeadline(const CoreOptions& options, const State& state);

}  // namespace fedshard::core
