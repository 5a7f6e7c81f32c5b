// Element types of stored tensors, and their conversion from and to fp32. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fedshard::checkpoint {

enum class DType { kF32, kF16, kBF16 };

int64_t BytesOf(DType dtype);
std::string DTypeName(DType dtype);                        // "F32", as in the header.
std::optional<DType> ParseDType(const std::string& name);  // Of DTypeName.

// Elements [0, count) between fp32 and a dtype; bf16 and f16 round to nearest even. NaN stays NaN,
// what is beyond f16 becomes infinite. `in` and `out` need no alignment on the side of the dtype.
void ToFloats(DType dtype, const void* in, int64_t count, float* out);
void FromFloats(DType dtype, const float* in, int64_t count, void* out);

}  // namespace fedshard::checkpoint
