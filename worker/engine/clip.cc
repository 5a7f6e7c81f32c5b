#include "worker/engine/clip.h"

#include <ATen/ATen.h>

#include <cmath>

#include "worker/engine/unit_layout.h"
#include "worker/kernels/cpu_loops.h"

namespace fedshard::engine {

void AppendBlockSums(const at::Tensor& gradient, std::vector<double>& sums) {
  TORCH_CHECK(gradient.numel() % kBlockElements == 0, "a shard is a whole number of blocks");
  const int64_t blocks = gradient.numel() / kBlockElements;
  const size_t first = sums.size();
  sums.resize(first + blocks);
  if (gradient.is_cpu()) {
    const float* data = gradient.const_data_ptr<float>();
    for (int64_t block = 0; block < blocks; ++block) {
      sums[first + block] = kernels::SumOfSquares(data + block * kBlockElements, kBlockElements);
    }
    return;
  }
  const at::Tensor squares =
      gradient.view({blocks, kBlockElements}).to(at::kDouble).square().sum(1).cpu();
  std::copy_n(squares.const_data_ptr<double>(), blocks, sums.begin() + first);
}

double GradientNorm(const std::vector<std::vector<double>>& by_rank,
                    const std::vector<int64_t>& unit_blocks) {
  double total = 0;
  int64_t begin = 0;
  for (int64_t blocks : unit_blocks) {
    for (const std::vector<double>& sums : by_rank) {
      for (int64_t block = begin; block < begin + blocks; ++block) total += sums[block];
    }
    begin += blocks;
  }
  return std::sqrt(total);
}

double ClipFactor(double norm, double clip) {
  if (clip <= 0) return 1;
  const double factor = clip / (norm + 1e-6);
  return factor < 1 ? factor : 1;
}

}  // namespace fedshard::engine
