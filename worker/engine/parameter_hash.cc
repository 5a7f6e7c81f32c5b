#include "worker/engine/parameter_hash.h"

#include <ATen/ATen.h>

#include <cstdio>

#include "worker/collective/hash.h"

namespace fedshard::engine {

uint64_t TensorFingerprint(const at::Tensor& tensor, uint64_t seed) {
  const at::Tensor host = tensor.cpu().contiguous();
  return collective::Fingerprint64(host.const_data_ptr(), host.nbytes(), seed);
}

uint64_t FingerprintOf(const std::vector<at::Tensor>& tensors) {
  uint64_t fingerprint = 0;
  for (const at::Tensor& tensor : tensors) fingerprint = TensorFingerprint(tensor, fingerprint);
  return fingerprint;
}

std::string HexHash(const std::map<std::string, uint64_t>& fingerprint_by_name) {
  uint64_t hash = 0;
  for (const auto& [name, fingerprint] : fingerprint_by_name) {
    hash = collective::Fingerprint64(name.data(), name.size(), hash);
    hash = collective::Fingerprint64(&fingerprint, sizeof(fingerprint), hash);
  }
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
  return hex;
}

}  // namespace fedshard::engine
