// The part of the memory formula that lives within a micro-batch: what blocks keep for their
// backward passes, and the largest that is there besides at any moment. Pure arithmetic.
#pragma once

#include <cstdint>

#include "planner/memory.h"

namespace fedshard::planner {

struct Activations {
  int64_t kept = 0;       // By all blocks, when the last has run.
  int64_t transient = 0;  // Above that, at the worst moment.
};

Activations PlanActivations(const MemoryOptions& options);

}  // namespace fedshard::planner
