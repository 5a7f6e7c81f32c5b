// The optimizer of rounds: what the groups' mean becomes, seen as a step from the parameters of the
// last commit. Owned by the averager; used by one thread. All tensors fp32, one per unit.
//
// With the pseudo-gradient g = base - mean:
//   kNone       mean
//   kMomentum   v = momentum v + g;               base - lr v
//   kNesterov   v = momentum v + g;               base - lr (g + momentum v)     (DiLoCo,
//               arXiv:2311.08105, with PyTorch's form of Nesterov momentum)
//   kAdam       m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
//               base - lr m / (sqrt(v) + eps)     (FedAdam, arXiv:2003.00295: no bias correction)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fedshard::federation {

struct OuterOptimizerOptions {
  enum class Type { kNone, kMomentum, kNesterov, kAdam };
  Type type = Type::kNone;
  double learning_rate = 1.0;
  double momentum = 0.0;  // kMomentum, kNesterov.
  double beta1 = 0.9;     // kAdam.
  double beta2 = 0.99;
  double eps = 1e-3;
};

class OuterOptimizer {
 public:
  // State in the shapes of `shards`.
  OuterOptimizer(const OuterOptimizerOptions& options, const std::vector<at::Tensor>& shards);

  bool active() const { return options_.type != OuterOptimizerOptions::Type::kNone; }
  // New parameters of elements [first, first + mean.numel()) of tensor `unit`. With `keep` the
  // state moves on; without it stays. Both give the same bits.
  at::Tensor Apply(size_t unit, int64_t first, const at::Tensor& base, const at::Tensor& mean,
                   bool keep);

  // Empty where the type has none. May be written between rounds.
  const std::vector<at::Tensor>& first_moments() const { return first_; }
  const std::vector<at::Tensor>& second_moments() const { return second_; }

 private:
  const OuterOptimizerOptions options_;
  std::vector<at::Tensor> first_;
  std::vector<at::Tensor> second_;
};

}  // namespace fedshard::federation
