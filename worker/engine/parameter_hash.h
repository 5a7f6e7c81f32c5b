// Fingerprints of parameters, for comparing ranks and runs. Stateless.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fedshard::engine {

// Of the tensor's bytes (contiguous; copied to the host when it lives elsewhere).
uint64_t TensorFingerprint(const at::Tensor& tensor, uint64_t seed = 0);

// Of several tensors in their order.
uint64_t FingerprintOf(const std::vector<at::Tensor>& tensors);

// 16 hex digits over names and fingerprints of parameters, in name order.
std::string HexHash(const std::map<std::string, uint64_t>& fingerprint_by_name);

}  // namespace fedshard::engine
