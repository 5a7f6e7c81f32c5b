#include "tests/numeric/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

namespace fedshard::numeric {
namespace {

// Before each block's data; a cache line, so that the data stay aligned.
struct alignas(64) Header {
  int64_t bytes;
  TensorMemory* memory;
};

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* header =
        static_cast<Header*>(c10::GetDefaultCPUAllocator()->raw_allocate(bytes + sizeof(Header)));
    TensorMemory& memory = ThreadTensorMemory();
    memory.live += static_cast<int64_t>(bytes);
    memory.peak = std::max(memory.peak, memory.live);
    ++memory.allocations;
    *header = {static_cast<int64_t>(bytes), &memory};
    void* data = header + 1;
    return {data, data, &Free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

 private:
  static void Free(void* data) {
    auto* header = static_cast<Header*>(data) - 1;
    header->memory->live -= header->bytes;
    c10::GetDefaultCPUAllocator()->raw_deallocate(header);
  }
};

}  // namespace

void CountTensorMemory() {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

TensorMemory& ThreadTensorMemory() {
  static thread_local TensorMemory memory;
  return memory;
}

}  // namespace fedshard::numeric
