#include "worker/federation/wire_codec.h"

#include <ATen/ATen.h>

namespace fedshard::federation {
namespace {

constexpr double kLargest = 127;  // Symmetric: -128 is not used.

}  // namespace

int64_t WireCodec::Bytes(int64_t elements) const {
  TORCH_CHECK(elements % kBlock == 0, "the wire carries whole blocks");
  if (compression_ == Compression::kBf16) return 2 * elements;
  return elements + elements / kBlock * static_cast<int64_t>(sizeof(float));
}

void WireCodec::Encode(const at::Tensor& values, at::Tensor bytes) const {
  if (compression_ == Compression::kBf16) {
    bytes.view(at::kBFloat16).copy_(values);
    return;
  }
  const int64_t blocks = values.numel() / kBlock;
  const int64_t scale_bytes = blocks * static_cast<int64_t>(sizeof(float));
  const at::Tensor rows = values.view({blocks, kBlock});
  at::Tensor scales = bytes.narrow(0, 0, scale_bytes).view(at::kFloat);
  at::amax_out(scales, rows.abs(), {1});
  scales.div_(kLargest);
  // A block of zeros has the scale zero; it must not divide.
  const at::Tensor divisors = scales.clamp_min(std::numeric_limits<float>::min()).unsqueeze(1);
  const at::Tensor quotients = (rows / divisors).round_().clamp_(-kLargest, kLargest);
  bytes.narrow(0, scale_bytes, values.numel()).view(at::kChar).copy_(quotients.view({-1}));
}

void WireCodec::Decode(const at::Tensor& bytes, at::Tensor values) const {
  if (compression_ == Compression::kBf16) {
    values.copy_(bytes.view(at::kBFloat16));
    return;
  }
  const int64_t blocks = values.numel() / kBlock;
  const int64_t scale_bytes = blocks * static_cast<int64_t>(sizeof(float));
  values.copy_(bytes.narrow(0, scale_bytes, values.numel()).view(at::kChar));
  values.view({blocks, kBlock}).mul_(bytes.narrow(0, 0, scale_bytes).view(at::kFloat).unsqueeze(1));
}

}  // namespace fedshard::federation
