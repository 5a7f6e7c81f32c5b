// Proves AdamW and SGD against step-by-step double arithmetic, that only matrices decay, and that
// sharded updates have the bits of the unsharded one; with bf16 moments too.
#include "worker/engine/shard_optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fedshard::engine {
namespace {

ModelConfig SmallModel() {
  ModelConfig model;
  model.vocab_size = 67;
  model.hidden_size = 20;
  model.intermediate_size = 44;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 1;
  model.head_dim = 10;
  return model;
}

constexpr double kRate = 1e-2;
constexpr int kSteps = 4;

// Values and gradients of the unpadded unit, the same for every shard count.
at::Tensor Element(int unit, int64_t size, int step) {
  const at::Tensor index = at::arange(size, at::kDouble);
  return at::sin(index * 0.37 + unit + 11 * step).to(at::kFloat);
}

std::vector<at::Tensor> Cut(const ModelLayout& layout, int shard, int step) {
  std::vector<at::Tensor> shards;
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    const int64_t size = layout.shard_size(unit);
    const int64_t padded = layout.units()[unit].padded_size;
    shards.push_back(Element(unit, padded, step).narrow(0, shard * size, size).clone());
  }
  return shards;
}

// The first `count` elements of `unit` after some steps.
at::Tensor Train(const OptimizerOptions& options, int shards, int unit, int64_t count) {
  const ModelLayout layout(SmallModel(), shards);
  std::vector<at::Tensor> parts;
  for (int shard = 0; shard < shards; ++shard) {
    std::vector<at::Tensor> masters = Cut(layout, shard, 0);
    ShardOptimizer optimizer(options, layout, shard, masters);
    for (int step = 1; step <= kSteps; ++step) {
      optimizer.Step(Cut(layout, shard, step), kRate);
    }
    parts.push_back(masters[unit]);
  }
  return at::cat(parts).narrow(0, 0, count);
}

void ExpectShardIndependent(const OptimizerOptions& options) {
  const int64_t count = ModelLayout(SmallModel(), 1).units()[1].padded_size;
  const at::Tensor whole = Train(options, 1, 1, count);
  for (int shards : {2, 3, 4, 8}) {
    EXPECT_TRUE(at::equal(Train(options, shards, 1, count), whole)) << shards << " shards";
  }
}

double AdamW(const OptimizerOptions& o, double p, double decay, const std::vector<double>& grads) {
  double m = 0, v = 0;
  for (size_t t = 1; t <= grads.size(); ++t) {
    const double g = grads[t - 1];
    p -= kRate * decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double t_double = static_cast<double>(t);
    const double m_hat = m / (1 - std::pow(o.beta1, t_double));
    const double v_hat = v / (1 - std::pow(o.beta2, t_double));
    p -= kRate * m_hat / (std::sqrt(v_hat) + o.eps);
  }
  return p;
}

double Sgd(const OptimizerOptions& o, double p, double decay, const std::vector<double>& grads) {
  double buffer = 0;
  for (double g : grads) {
    buffer = o.momentum * buffer + g + decay * p;
    p -= kRate * buffer;
  }
  return p;
}

void ExpectFollows(const OptimizerOptions& options,
                   double (*reference)(const OptimizerOptions&, double, double,
                                       const std::vector<double>&),
                   double tolerance = 1e-6) {
  const ModelLayout layout(SmallModel(), 1);
  const UnitLayout& unit = layout.units()[1];
  const at::Tensor got = Train(options, 1, 1, unit.padded_size);
  for (const ParameterSpec& parameter : unit.parameters) {
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.size; i += 7) {
      std::vector<double> grads;
      for (int step = 1; step <= kSteps; ++step) {
        grads.push_back(Element(1, unit.padded_size, step)[i].item<double>());
      }
      const double start = Element(1, unit.padded_size, 0)[i].item<double>();
      const double decay = parameter.shape.size() == 2 ? options.weight_decay : 0;
      ASSERT_NEAR(got[i].item<double>(), reference(options, start, decay, grads), tolerance)
          << parameter.name;
    }
  }
}

OptimizerOptions AdamWOptions() {
  OptimizerOptions options;
  options.weight_decay = 0.5;
  return options;
}

OptimizerOptions SgdOptions(double momentum) {
  OptimizerOptions options;
  options.type = OptimizerOptions::Type::kSgd;
  options.weight_decay = 0.5;
  options.momentum = momentum;
  return options;
}

TEST(ShardOptimizer, AdamWFollowsItsDefinition) { ExpectFollows(AdamWOptions(), AdamW); }
TEST(ShardOptimizer, SgdFollowsItsDefinition) { ExpectFollows(SgdOptions(0), Sgd); }
TEST(ShardOptimizer, SgdWithMomentumFollowsItsDefinition) { ExpectFollows(SgdOptions(0.9), Sgd); }
TEST(ShardOptimizer, Bf16MomentsFollowTheDefinitionToTheirRounding) {
  OptimizerOptions options = AdamWOptions();
  options.moments = Precision::kBf16;
  // In each step the update, about a rate long, is off by what 2^-9 does to both moments.
  ExpectFollows(options, AdamW, kSteps * kRate * 2 / 512);
  ExpectShardIndependent(options);
  options = SgdOptions(0.9);
  options.moments = Precision::kBf16;
  ExpectFollows(options, Sgd, 4 * kSteps * kRate / 512);
  ExpectShardIndependent(options);
}
TEST(ShardOptimizer, AdamWDoesNotDependOnTheShards) { ExpectShardIndependent(AdamWOptions()); }
TEST(ShardOptimizer, SgdDoesNotDependOnTheShards) { ExpectShardIndependent(SgdOptions(0.9)); }

}  // namespace
}  // namespace fedshard::engine
