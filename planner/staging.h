// Memory that a group's Comm keeps to receive what it adds up (worker/collective/link_comm.h): a
// model of its pool of buffers under the order in which a step reduces its units. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

namespace fedshard::planner {

struct ReduceOrder {
  std::vector<int64_t> parts;  // Elements that a rank receives from each other rank, by unit.
  bool tied = false;           // The embedding's unit is the head's too.
  int64_t scatters = 1;        // Micro-batches whose gradients are reduced each by itself.
};

// Elements that the pool holds in the end.
int64_t StagingElements(const ReduceOrder& order, int ranks);

}  // namespace fedshard::planner
