// Sums in fp32 of what ranks sent in bf16. Owned by whoever receives; used by one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fedshard::engine {

class WireSum {
 public:
  // `ranks` addends of at most `largest` elements; `floats`: fp32 on the device.
  WireSum(int ranks, int64_t largest, at::TensorOptions floats);

  // out [n] (fp32) = sum of the n-element parts of `received` [ranks * n], in the order of
  // collective/tree_sum.h.
  void Add(const at::Tensor& received, at::Tensor out);

 private:
  // out = sum of parts [first, first + count).
  void AddParts(const at::Tensor& parts, int64_t first, int64_t count, size_t depth,
                at::Tensor out);

  int ranks_;
  std::vector<at::Tensor> scratch_;  // By depth of the tree: the right half's sum.
};

}  // namespace fedshard::engine
