#include "worker/engine/wire_sum.h"

#include <ATen/ATen.h>

#include <bit>

namespace fedshard::engine {

WireSum::WireSum(int ranks, int64_t largest, at::TensorOptions floats) : ranks_(ranks) {
  // A right half of one part is added as it is, so the deepest level needs no scratch.
  const int depth = std::bit_width(static_cast<unsigned>(ranks - 1));
  for (int level = 1; level < depth; ++level) scratch_.push_back(at::zeros({largest}, floats));
}

void WireSum::Add(const at::Tensor& received, at::Tensor out) {
  TORCH_CHECK(received.numel() == ranks_ * out.numel(), "parts of another size");
  AddParts(received.view({ranks_, out.numel()}), 0, ranks_, 0, out);
}

void WireSum::AddParts(const at::Tensor& parts, int64_t first, int64_t count, size_t depth,
                       at::Tensor out) {
  if (count == 1) {
    out.copy_(parts.select(0, first));
    return;
  }
  const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1)));
  AddParts(parts, first, left, depth, out);
  if (count - left == 1) {
    out.add_(parts.select(0, first + left));
    return;
  }
  const at::Tensor right = scratch_[depth].narrow(0, 0, out.numel());
  AddParts(parts, first + left, count - left, depth + 1, right);
  out.add_(right);
}

}  // namespace fedshard::engine
