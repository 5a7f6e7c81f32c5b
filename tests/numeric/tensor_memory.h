// Counts the tensor memory of each thread: what it has allocated and not yet freed, the highest
// value of that, and the number of allocations. For tests whose ranks are threads; a tensor counts
// for the thread that allocated it. Install() once per process, before tensors.
#pragma once

#include <cstdint>

namespace fedshard::numeric {

struct TensorMemory {
  int64_t live = 0;
  int64_t peak = 0;
  int64_t allocations = 0;
};

// Makes LibTorch's allocator of CPU memory count.
void CountTensorMemory();

// Of the calling thread.
TensorMemory& ThreadTensorMemory();

}  // namespace fedshard::numeric
