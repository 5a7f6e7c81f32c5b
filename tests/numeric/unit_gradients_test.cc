// Unit by unit over refilled, poisoned ring buffers, the gradients have the bits of one ordinary
// backward pass over one whole graph with weights that stay where they are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "worker/collective/fake_comm.h"
#include "worker/collective/self_comm.h"
#include "worker/collective/testing/ranks.h"
#include "worker/engine/gradient_reducer.h"
#include "worker/engine/llama.h"
#include "worker/engine/math_backend.h"
#include "worker/engine/training_pass.h"
#include "worker/engine/unit_gatherer.h"
#include "worker/engine/unit_layout.h"
#include "worker/kernels/chunked_cross_entropy.h"

namespace fedshard::engine {
namespace {

constexpr int64_t kBatch = 2, kLength = 12, kVocabulary = 53, kChunk = 10;
constexpr double kScale = 1.0 / 64;
constexpr int kRanks = 2;

ModelConfig Model(int64_t blocks, bool tied) {
  ModelConfig model;
  model.vocab_size = kVocabulary;
  model.hidden_size = 48;
  model.intermediate_size = 80;
  model.num_hidden_layers = blocks;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 12;
  model.tie_word_embeddings = tied;
  return model;
}

at::Tensor Random(at::IntArrayRef shape, int64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat) * 0.2;
}

at::Tensor Tokens() {
  return at::randint(kVocabulary, {kBatch, kLength + 1},
                     at::make_generator<at::CPUGeneratorImpl>(5), at::kLong);
}

std::vector<at::Tensor> Weights(const ModelLayout& layout) {
  std::vector<at::Tensor> units;
  for (size_t unit = 0; unit < layout.units().size(); ++unit) {
    at::Tensor flat = Random({layout.units()[unit].padded_size}, 100 + static_cast<int64_t>(unit));
    for (const Gap& gap : layout.Gaps(static_cast<int>(unit))) {
      flat.narrow(0, gap.begin, gap.end - gap.begin).zero_();
    }
    units.push_back(flat);
  }
  return units;
}

// The gradient of every unit, flat with zero padding, from one graph.
std::vector<at::Tensor> WholeGraph(const ModelLayout& layout, const ModelConfig& config,
                                   const std::vector<at::Tensor>& units) {
  const Llama model(config, kLength, at::kCPU);
  const auto leaf = [&](int unit, const std::string& name) {
    const ParameterSpec& p = layout.units()[unit].Find(name);
    return WeightView{p.offset, p.shape}.Of(units[unit]).clone().set_requires_grad(true);
  };
  const int head_unit = layout.head_unit();
  const at::Tensor embedding = leaf(0, "model.embed_tokens.weight");
  const at::Tensor norm = leaf(head_unit, "model.norm.weight");
  const at::Tensor head = layout.tied() ? embedding : leaf(head_unit, "lm_head.weight");
  const at::Tensor inputs = Tokens().narrow(1, 0, kLength).reshape({-1});
  const at::Tensor targets = Tokens().narrow(1, 1, kLength).reshape({-1});

  std::vector<at::Tensor> leaves = {embedding, norm};
  at::Tensor x = at::embedding(embedding, inputs);
  for (int block = 0; block < layout.blocks(); ++block) {
    const int unit = layout.block_unit(block);
    std::vector<at::Tensor> w;
    for (const WeightView& view : BlockWeightViews(layout.units()[unit])) {
      w.push_back(view.Of(units[unit]).clone().set_requires_grad(true));
    }
    x = model.Block(x, {w[0], w[1], w[2], w[3], w[4], w[5]}, kBatch);
    leaves.insert(leaves.end(), w.begin(), w.end());
  }
  const at::Tensor hidden = model.FinalNorm(x, norm);
  at::Tensor grad_hidden = at::empty_like(hidden.detach()), grad_head = at::empty_like(head);
  grad_head = grad_head.detach();
  kernels::ChunkedCrossEntropyWithGradients(hidden.detach(), head.detach(), targets, kScale,
                                            at::empty({kChunk, kVocabulary}), grad_hidden,
                                            grad_head);
  const auto grads = torch::autograd::grad({hidden}, leaves, {grad_hidden});

  std::vector<at::Tensor> flat;
  for (const UnitLayout& unit : layout.units()) flat.push_back(at::zeros({unit.padded_size}));
  const auto store = [&](int unit, const WeightView& view, const at::Tensor& value) {
    view.Of(flat[unit]).add_(value);
  };
  const auto store_named = [&](int unit, const std::string& name, const at::Tensor& value) {
    const ParameterSpec& p = layout.units()[unit].Find(name);
    store(unit, {p.offset, p.shape}, value);
  };
  store_named(0, "model.embed_tokens.weight", grads[0]);
  store_named(head_unit, "model.norm.weight", grads[1]);
  store_named(head_unit, layout.tied() ? "model.embed_tokens.weight" : "lm_head.weight", grad_head);
  size_t next = 2;
  for (int block = 0; block < layout.blocks(); ++block) {
    const int unit = layout.block_unit(block);
    for (const WeightView& view : BlockWeightViews(layout.units()[unit])) {
      store(unit, view, grads[next++]);
    }
  }
  return flat;
}

class UnitGradients : public testing::TestWithParam<std::tuple<int64_t, bool>> {};

TEST_P(UnitGradients, HaveTheBitsOfOneWholeGraph) {
  SelectMathBackend();
  const ModelConfig config = Model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const ModelLayout layout(config, kRanks);
  const std::vector<at::Tensor> units = Weights(layout);
  const std::vector<at::Tensor> expected = WholeGraph(layout, config, units);

  collective::FakeWorld world(kRanks);
  collective::RunRanks(kRanks, [&](int rank) {
    const auto shard = world.Connect(rank);
    collective::SelfComm replica;
    std::vector<at::Tensor> masters;
    for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
      const int64_t size = layout.shard_size(unit);
      masters.push_back(units[unit].narrow(0, rank * size, size).clone());
    }
    UnitGatherer gatherer(layout, masters, *shard, /*poison=*/true);
    EngineOptions options;
    options.accumulation = 2;
    GradientReducer reducer(layout, options, at::kFloat, *shard, replica);
    const Llama model(config, kLength, at::kCPU);
    const ModelWeights weights(layout, gatherer);
    TrainingPass pass(layout, model, weights, gatherer, reducer, at::empty({kChunk, kVocabulary}),
                      options.recompute);
    reducer.BeginStep();
    pass.Run(Tokens(), kScale, /*more=*/true);
    pass.Run(Tokens(), kScale, /*more=*/false);
    reducer.FinishStep();
    // The same tokens four times, two ranks with two micro-batches: the sum is exactly four times
    // one.
    for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
      const int64_t size = layout.shard_size(unit);
      const at::Tensor part = expected[unit].narrow(0, rank * size, size) * 4;
      EXPECT_TRUE(at::equal(reducer.sums()[unit], part)) << "unit " << unit << " rank " << rank;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, UnitGradients,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Bool()));

}  // namespace
}  // namespace fedshard::engine
