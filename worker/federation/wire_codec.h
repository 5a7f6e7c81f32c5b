// How parameter changes look on the wire between groups: fp32 elements as fewer bytes. Stateless;
// the same bytes give the same values on every rank and device.
//
// kBf16: two bytes an element, rounded to nearest even.
// kInt8: blocks of kBlock elements; per block one fp32 scale = max|x| / 127, then x / scale rounded
// to nearest (ties to even): an error of at most scale / 2 per element.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fedshard::federation {

enum class Compression { kNone, kBf16, kInt8 };

class WireCodec {
 public:
  static constexpr int64_t kBlock = 256;  // Elements that share a scale.

  // `compression` is not kNone.
  explicit WireCodec(Compression compression) : compression_(compression) {}

  // Bytes of `elements` values, a multiple of kBlock.
  int64_t Bytes(int64_t elements) const;
  // values: fp32 [n]; bytes: uint8 [Bytes(n)], same device.
  void Encode(const at::Tensor& values, at::Tensor bytes) const;
  // The other way.
  void Decode(const at::Tensor& bytes, at::Tensor values) const;

 private:
  Compression compression_;
};

}  // namespace fedshard::federation
