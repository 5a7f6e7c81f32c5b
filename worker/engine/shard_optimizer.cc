#include "worker/engine/shard_optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "worker/kernels/adamw.h"

namespace fedshard::engine {

ShardOptimizer::ShardOptimizer(const OptimizerOptions& options, const ModelLayout& layout,
                               int shard, const std::vector<at::Tensor>& masters)
    : options_(options) {
  decay_.weight_decay = options.weight_decay;
  const bool adamw = options.type == OptimizerOptions::Type::kAdamW;
  const auto type = options.moments == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
  for (const at::Tensor& master : masters) {
    const at::TensorOptions as_kept = master.options().dtype(type);
    if (adamw || options.momentum != 0) {
      first_moments_.push_back(at::zeros(master.sizes(), as_kept));
    }
    if (adamw) second_moments_.push_back(at::zeros(master.sizes(), as_kept));
  }
  for (size_t unit = 0; unit < masters.size(); ++unit) {
    const int index = static_cast<int>(unit);
    const int64_t boundary = layout.DecayElements(index, shard);
    AddPart(decay_, index, 0, boundary, masters[unit]);
    AddPart(no_decay_, index, boundary, layout.shard_size(index), masters[unit]);
  }
  steps_ = at::zeros({}, masters.front().options());
}

void ShardOptimizer::AddPart(Range& range, int unit, int64_t begin, int64_t end,
                             const at::Tensor& master) {
  if (begin == end) return;
  range.units.push_back(unit);
  range.begins.push_back(begin);
  range.masters.push_back(master.narrow(0, begin, end - begin));
  if (!first_moments_.empty()) {
    range.first_moments.push_back(first_moments_[unit].narrow(0, begin, end - begin));
  }
  if (!second_moments_.empty()) {
    range.second_moments.push_back(second_moments_[unit].narrow(0, begin, end - begin));
  }
}

void ShardOptimizer::Step(const std::vector<at::Tensor>& gradients, double learning_rate) {
  const at::NoGradGuard no_grad;
  set_steps(step_count_ + 1);
  for (Range* range : {&decay_, &no_decay_}) {
    if (range->masters.empty()) continue;
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < range->units.size(); ++i) {
      parts.push_back(
          gradients[range->units[i]].narrow(0, range->begins[i], range->masters[i].numel()));
    }
    if (options_.type == OptimizerOptions::Type::kSgd) {
      StepSgd(*range, parts, learning_rate);
    } else if (options_.moments == Precision::kBf16) {
      StepAdamWBf16(*range, parts, learning_rate);
    } else {
      StepAdamW(*range, parts, learning_rate);
    }
  }
}

void ShardOptimizer::set_steps(int64_t steps) {
  step_count_ = steps;
  steps_.fill_(static_cast<double>(steps));
}

void ShardOptimizer::StepAdamW(Range& range, std::vector<at::Tensor>& gradients,
                               double learning_rate) {
  const std::vector<at::Tensor> steps(range.masters.size(), steps_);
  at::_fused_adamw_(range.masters, gradients, range.first_moments, range.second_moments,
                    /*max_exp_avg_sqs=*/{}, steps, learning_rate, options_.beta1, options_.beta2,
                    range.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
}

// LibTorch's fused kernel wants one type for all.
void ShardOptimizer::StepAdamWBf16(Range& range, std::vector<at::Tensor>& gradients,
                                   double learning_rate) {
  const auto steps = static_cast<double>(step_count_);
  kernels::AdamWFactors factors;
  factors.keep = static_cast<float>(1 - learning_rate * range.weight_decay);
  factors.beta1 = static_cast<float>(options_.beta1);
  factors.beta2 = static_cast<float>(options_.beta2);
  factors.step = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, steps)));
  factors.root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, steps)));
  factors.eps = static_cast<float>(options_.eps);
  for (size_t i = 0; i < range.masters.size(); ++i) {
    kernels::AdamWBf16(range.masters[i], gradients[i], range.first_moments[i],
                       range.second_moments[i], factors);
  }
}

// As torch.optim.SGD: decay is added to the gradient; the momentum buffer starts as the first
// gradient, which is what a zero buffer gives.
void ShardOptimizer::StepSgd(Range& range, std::vector<at::Tensor>& gradients,
                             double learning_rate) {
  for (size_t i = 0; i < range.masters.size(); ++i) {
    at::Tensor direction = gradients[i];
    if (range.weight_decay != 0) direction.add_(range.masters[i], range.weight_decay);
    if (options_.momentum != 0) {
      at::Tensor momentum = range.first_moments[i].to(at::kFloat);  // Itself when it is fp32.
      momentum.mul_(options_.momentum).add_(direction);
      if (!momentum.is_same(range.first_moments[i])) range.first_moments[i].copy_(momentum);
      direction = momentum;
    }
    range.masters[i].sub_(direction, learning_rate);
  }
}

}  // namespace fedshard::engine
