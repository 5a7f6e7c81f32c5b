// The optimizer of one rank's flat shards, with its state. Matrices decay, norm weights do not.
// Owned by the engine; used by one thread.
//
// Moments in bf16: the arithmetic is fp32, and a moment is rounded to the nearest when it is
// stored. With 8 bits a second moment that shrinks by less than 2^-9 of itself in a step stays
// where it is: beta2 of 0.99 or less decays, 0.999 does not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/engine.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

class ShardOptimizer {
 public:
  // `masters`: one fp32 shard per unit, updated in place by Step; the tensors stay the same.
  ShardOptimizer(const OptimizerOptions& options, const ModelLayout& layout, int shard,
                 const std::vector<at::Tensor>& masters);

  // `gradients`: as `masters`; overwritten.
  void Step(const std::vector<at::Tensor>& gradients, double learning_rate);

  // One tensor per unit, as `masters` (or bf16); empty when this optimizer keeps none. First
  // moments: of the gradient (AdamW), or the momentum buffer (SGD). May be written between steps.
  const std::vector<at::Tensor>& first_moments() const { return first_moments_; }
  const std::vector<at::Tensor>& second_moments() const { return second_moments_; }
  // Steps made: the argument of AdamW's bias correction.
  int64_t steps() const { return step_count_; }
  void set_steps(int64_t steps);

 private:
  // The same part of every unit's shard: that with decay, or that without.
  struct Range {
    double weight_decay = 0;
    std::vector<int> units;
    std::vector<int64_t> begins;
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> first_moments;  // Views of the whole ones.
    std::vector<at::Tensor> second_moments;
  };

  void AddPart(Range& range, int unit, int64_t begin, int64_t end, const at::Tensor& master);
  void StepAdamW(Range& range, std::vector<at::Tensor>& gradients, double learning_rate);
  void StepAdamWBf16(Range& range, std::vector<at::Tensor>& gradients, double learning_rate);
  void StepSgd(Range& range, std::vector<at::Tensor>& gradients, double learning_rate);

  OptimizerOptions options_;
  std::vector<at::Tensor> first_moments_;
  std::vector<at::Tensor> second_moments_;
  Range decay_;
  Range no_decay_;
  int64_t step_count_ = 0;
  at::Tensor steps_;  // float []; what the fused kernel wants.
};

}  // namespace fedshard::engine
