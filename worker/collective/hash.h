// 64-bit fingerprint of bytes: equal bytes give equal values on every machine; not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedshard::collective {

uint64_t Fingerprint64(const void* data, size_t bytes, uint64_t seed = 0);

}  // namespace fedshard::collective
