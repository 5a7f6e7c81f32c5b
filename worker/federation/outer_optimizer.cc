#include "worker/federation/outer_optimizer.h"

#include <ATen/ATen.h>

namespace fedshard::federation {

using Type = OuterOptimizerOptions::Type;

OuterOptimizer::OuterOptimizer(const OuterOptimizerOptions& options,
                               const std::vector<at::Tensor>& shards)
    : options_(options) {
  if (!active()) return;
  for (const at::Tensor& shard : shards) {
    first_.push_back(at::zeros_like(shard));
    if (options.type == Type::kAdam) second_.push_back(at::zeros_like(shard));
  }
}

at::Tensor OuterOptimizer::Apply(size_t unit, int64_t first, const at::Tensor& base,
                                 const at::Tensor& mean, bool keep) {
  if (!active()) return mean;
  const at::Tensor gradient = base - mean;
  at::Tensor old_first = first_[unit].narrow(0, first, mean.numel());
  if (options_.type == Type::kAdam) {
    at::Tensor old_second = second_[unit].narrow(0, first, mean.numel());
    const at::Tensor m = old_first * options_.beta1 + gradient * (1 - options_.beta1);
    const at::Tensor v = old_second * options_.beta2 + gradient * gradient * (1 - options_.beta2);
    if (keep) {
      old_first.copy_(m);
      old_second.copy_(v);
    }
    return base - m / (v.sqrt() + options_.eps) * options_.learning_rate;
  }
  const at::Tensor v = old_first * options_.momentum + gradient;
  if (keep) old_first.copy_(v);
  if (options_.type == Type::kMomentum) return base - v * options_.learning_rate;
  return base - (gradient + v * options_.momentum) * options_.learning_rate;
}

}  // namespace fedshard::federation
