#include "worker/engine/training_pass.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "worker/kernels/chunked_cross_entropy.h"
#include "worker/kernels/embedding_gradient.h"

namespace fedshard::engine {
namespace {

at::Tensor Leaf(const at::Tensor& view, bool requires_grad) {
  at::Tensor leaf = view.variable_data();  // Same memory, own version counter.
  leaf.set_requires_grad(requires_grad);
  return leaf;
}

WeightView ViewOf(const UnitLayout& unit, const std::string& name) {
  const ParameterSpec& parameter = unit.Find(name);
  return {parameter.offset, parameter.shape};
}

const char kEmbedding[] = "model.embed_tokens.weight";
const char kFinalNorm[] = "model.norm.weight";
const char kHead[] = "lm_head.weight";

}  // namespace

ModelWeights::ModelWeights(const ModelLayout& layout, const UnitGatherer& gatherer) {
  const auto view = [&](int unit, const std::string& name) {
    return ViewOf(layout.units()[unit], name).Of(gatherer.full(unit));
  };
  embedding = Leaf(view(layout.embedding_unit(), kEmbedding), false);
  head = layout.tied() ? embedding : Leaf(view(layout.head_unit(), kHead), false);
  final_norm = Leaf(view(layout.head_unit(), kFinalNorm), true);
  for (int block = 0; block < layout.blocks(); ++block) {
    const int unit = layout.block_unit(block);
    std::vector<at::Tensor> leaves;
    for (const WeightView& weight : BlockWeightViews(layout.units()[unit])) {
      leaves.push_back(Leaf(weight.Of(gatherer.full(unit)), true));
    }
    blocks.push_back({leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], leaves[5]});
  }
}

TrainingPass::TrainingPass(const ModelLayout& layout, const Llama& model,
                           const ModelWeights& weights, UnitGatherer& gatherer,
                           GradientReducer& reducer, const at::Tensor& logits, Recompute recompute)
    : layout_(layout),
      model_(model),
      weights_(weights),
      gatherer_(gatherer),
      reducer_(reducer),
      logits_(logits),
      block_views_(BlockWeightViews(layout.units()[layout.block_unit(0)])),
      recompute_(recompute),
      kept_(layout.blocks()) {}

at::Tensor TrainingPass::Run(const at::Tensor& tokens, double scale, bool more) {
  const int64_t batch = tokens.size(0);
  const int64_t length = tokens.size(1) - 1;
  const at::Tensor inputs = tokens.narrow(1, 0, length).reshape(-1);
  const at::Tensor targets = tokens.narrow(1, 1, length).reshape(-1);

  if (!embedding_in_flight_) gatherer_.Start(layout_.embedding_unit());
  gatherer_.Wait(layout_.embedding_unit());
  embedding_in_flight_ = false;
  gatherer_.Start(layout_.block_unit(0));
  at::Tensor x = at::embedding(weights_.embedding, inputs);
  if (!layout_.tied()) gatherer_.Release(layout_.embedding_unit());

  x = ForwardBlocks(x, batch);
  at::Tensor grad;
  const at::Tensor loss = Head(x, targets, scale, grad);
  x.reset();  // With the last block's graph: its backward pass frees it.
  grad = BackwardBlocks(std::move(grad), batch, more);
  BackwardEmbedding(grad, inputs);
  return loss;
}

void TrainingPass::Abandon() {
  for (Kept& kept : kept_) kept = {};
  embedding_in_flight_ = false;
}

at::Tensor TrainingPass::ForwardBlocks(at::Tensor x, int64_t batch) {
  const int last = layout_.blocks() - 1;
  for (int block = 0; block <= last; ++block) {
    const int unit = layout_.block_unit(block);
    gatherer_.Wait(unit);
    if (block < last) {
      gatherer_.Start(unit + 1);
    } else if (!layout_.tied()) {
      gatherer_.Start(layout_.head_unit());
    }
    x = ForwardBlock(block, x, batch);
    if (block < last) gatherer_.Release(unit);
  }
  return x;
}

at::Tensor TrainingPass::ForwardBlock(int block, const at::Tensor& x, int64_t batch) {
  const BlockWeights& weights = weights_.blocks[block];
  Kept& kept = kept_[block];
  kept.input = Leaf(x, true);
  if (recompute_ == Recompute::kNone || block == layout_.blocks() - 1) {
    kept.output = model_.Block(kept.input, weights, batch);
    return kept.output;
  }
  if (recompute_ == Recompute::kSelective) {
    kept.attended = model_.AttentionPart(kept.input, weights, batch);
    const at::NoGradGuard no_grad;
    return model_.FeedForwardPart(kept.input, kept.attended, weights);
  }
  const at::NoGradGuard no_grad;
  return model_.Block(kept.input, weights, batch);
}

at::Tensor TrainingPass::Head(const at::Tensor& x, const at::Tensor& targets, double scale,
                              at::Tensor& grad) {
  const int unit = layout_.head_unit();
  if (!layout_.tied()) gatherer_.Wait(unit);
  if (layout_.blocks() > 1) gatherer_.Start(layout_.block_unit(layout_.blocks() - 2));

  const UnitLayout& head = layout_.units()[unit];
  const at::Tensor buffer = reducer_.Buffer(unit);
  const at::Tensor grad_head = ViewOf(head, layout_.tied() ? kEmbedding : kHead).Of(buffer);
  at::Tensor grad_norm = ViewOf(head, kFinalNorm).Of(buffer);

  const at::Tensor input = Leaf(x, true);
  const at::Tensor hidden = model_.FinalNorm(input, weights_.final_norm);
  if (!grad_hidden_.defined() || grad_hidden_.sizes() != hidden.sizes()) {
    grad_hidden_ = at::empty_like(hidden.detach());
  }
  const at::Tensor loss = kernels::ChunkedCrossEntropyWithGradients(
      hidden.detach(), weights_.head, targets, scale, logits_, grad_hidden_, grad_head);
  const std::vector<at::Tensor> grads =
      torch::autograd::grad({hidden}, {weights_.final_norm, input}, {grad_hidden_});
  grad_norm.copy_(grads[0]);
  grad = grads[1];
  if (!layout_.tied()) {
    gatherer_.Release(unit);
    reducer_.Reduce(unit);
  }
  return loss;
}

at::Tensor TrainingPass::BackwardBlocks(at::Tensor grad, int64_t batch, bool more) {
  const int last = layout_.blocks() - 1;
  for (int block = last; block >= 0; --block) {
    const int unit = layout_.block_unit(block);
    gatherer_.Wait(unit);
    if (block > 0 && block < last) gatherer_.Start(unit - 1);
    if (block == 0 && more) {
      gatherer_.Start(layout_.embedding_unit());
      embedding_in_flight_ = true;
    }
    const std::vector<at::Tensor> grads = BlockGradients(block, grad, batch);
    const at::Tensor buffer = reducer_.Buffer(unit);
    for (size_t i = 0; i < block_views_.size(); ++i) {
      at::Tensor slot = block_views_[i].Of(buffer);
      slot.copy_(grads[i]);
    }
    reducer_.Reduce(unit);
    gatherer_.Release(unit);
    grad = grads.back();
  }
  return grad;
}

std::vector<at::Tensor> TrainingPass::BlockGradients(int block, const at::Tensor& grad,
                                                     int64_t batch) {
  const BlockWeights& weights = weights_.blocks[block];
  Kept kept = std::exchange(kept_[block], {});
  if (!kept.attended.defined()) {
    if (!kept.output.defined()) kept.output = model_.Block(kept.input, weights, batch);
    std::vector<at::Tensor> leaves = weights.All();
    leaves.push_back(kept.input);
    return torch::autograd::grad({kept.output}, leaves, {grad});
  }
  const at::Tensor input = Leaf(kept.input, true);
  const at::Tensor attended = Leaf(kept.attended, true);
  const std::vector<at::Tensor> second = torch::autograd::grad(
      {model_.FeedForwardPart(input, attended, weights)},
      {weights.output, weights.gate_up, weights.down, weights.post_attention_norm, attended, input},
      {grad});
  const std::vector<at::Tensor> first = torch::autograd::grad(
      {kept.attended}, {weights.qkv, weights.input_norm, kept.input}, {second[4]});
  // Two addends, as in the whole graph: their order does not matter.
  return {first[0], second[0], second[1], second[2], first[1], second[3], first[2] + second[5]};
}

void TrainingPass::BackwardEmbedding(const at::Tensor& grad, const at::Tensor& inputs) {
  const int unit = layout_.embedding_unit();
  const at::Tensor slot = ViewOf(layout_.units()[unit], kEmbedding).Of(reducer_.Buffer(unit));
  if (layout_.tied()) {
    // Head() has written the other part already, and the buffer is still its own.
    kernels::AddEmbeddingGradient(grad, inputs, slot);
  } else {
    kernels::StoreEmbeddingGradient(grad, inputs, slot);
  }
  reducer_.Reduce(unit);
}

}  // namespace fedshard::engine
