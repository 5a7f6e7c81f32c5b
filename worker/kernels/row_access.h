// Rows of fp32 or bf16 tensors for the CPU loops, which compute in fp32: fp32 rows in place, bf16
// rows through a scratch row. To the nearest when stored as bf16, ties to even.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/kernels/cpu_loops.h"

namespace fedshard::kernels {

// Scratch of `size` floats of this thread, number `slot`; valid until the next call with that slot.
inline float* ScratchRow(size_t slot, int64_t size) {
  static thread_local std::vector<std::vector<float>> rows(6);
  std::vector<float>& row = rows[slot];
  if (static_cast<int64_t>(row.size()) < size) row.resize(size);
  return row.data();
}

// The row as floats.
inline const float* ReadRow(const float* row, int64_t /*size*/, size_t /*slot*/) { return row; }
inline const float* ReadRow(const c10::BFloat16* row, int64_t size, size_t slot) {
  float* scratch = ScratchRow(slot, size);
  Bf16ToFloat(reinterpret_cast<const uint16_t*>(row), size, scratch);
  return scratch;
}

// Where to write the row as floats; then it is to be stored.
inline float* RowSpace(float* row, int64_t /*size*/, size_t /*slot*/) { return row; }
inline float* RowSpace(c10::BFloat16* /*row*/, int64_t size, size_t slot) {
  return ScratchRow(slot, size);
}
inline void StoreRow(const float* /*values*/, float* /*row*/, int64_t /*size*/) {}
inline void StoreRow(const float* values, c10::BFloat16* row, int64_t size) {
  FloatToBf16(values, size, reinterpret_cast<uint16_t*>(row));
}

// Calls body with a value of the tensor's element type.
template <typename Body>
auto ByElementType(const at::Tensor& tensor, Body body) {
  if (tensor.scalar_type() == at::kBFloat16) return body(c10::BFloat16());
  TORCH_CHECK(tensor.scalar_type() == at::kFloat, "kernels take fp32 and bf16, got ",
              tensor.scalar_type());
  return body(float());
}

}  // namespace fedshard::kernels
