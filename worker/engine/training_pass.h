// One micro-batch forward and backward over the sharded units: the explicit schedule of gathers,
// compute and reductions. Owned by the engine; used by one thread.
//
// Forward:  wait for unit i, start to gather unit i+1, compute on a detached input, release unit i
// (the last block stays). Backward: wait for unit i, start to gather unit i-1, autograd::grad of
// this unit alone, start to reduce its gradient. So per micro-batch embedding, head and last block
// are gathered once, every other block twice.
//
// Recompute: a block's forward pass, or what follows its attention, runs without a graph first and
// once more, with one, when its backward pass begins, on the same input and the same gathered
// weights: so it gives the same bits. The last block keeps its graph always: its backward pass
// comes next.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/engine.h"
#include "worker/engine/gradient_reducer.h"
#include "worker/engine/llama.h"
#include "worker/engine/unit_gatherer.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

// The parameters as the model wants them: views of the gathered units, made once. They are leaves
// of autograd with version counters of their own, so that refilling the buffers under a kept graph
// goes unnoticed.
struct ModelWeights {
  ModelWeights(const ModelLayout& layout, const UnitGatherer& gatherer);

  at::Tensor embedding;              // [V, D]
  std::vector<BlockWeights> blocks;  // Require gradients.
  at::Tensor head;                   // [V, D]; the embedding when tied.
  at::Tensor final_norm;             // [D]; requires gradients.
};

class TrainingPass {
 public:
  TrainingPass(const ModelLayout& layout, const Llama& model, const ModelWeights& weights,
               UnitGatherer& gatherer, GradientReducer& reducer, const at::Tensor& logits,
               Recompute recompute);

  // tokens: int64 [B, T+1] on the device. Gradients are those of scale * (sum of the losses of all
  // tokens). Returns that sum without the scale, a double tensor []. `more`: another micro-batch of
  // the step follows.
  at::Tensor Run(const at::Tensor& tokens, double scale, bool more);
  // After an error: forgets kept graphs.
  void Abandon();

 private:
  // What a block keeps from its forward pass to its backward pass.
  struct Kept {
    at::Tensor input;  // Leaf.
    // Of the attention, with its graph, when only what follows is computed again.
    at::Tensor attended;
    at::Tensor output;  // With its graph; undefined when it will be computed again.
  };

  at::Tensor ForwardBlocks(at::Tensor x, int64_t batch);
  // Fills in kept_[block]; returns the block's output.
  at::Tensor ForwardBlock(int block, const at::Tensor& x, int64_t batch);
  // Head and loss, forward and backward; `grad` becomes the gradient of the last block's output.
  at::Tensor Head(const at::Tensor& x, const at::Tensor& targets, double scale, at::Tensor& grad);
  at::Tensor BackwardBlocks(at::Tensor grad, int64_t batch, bool more);
  // Gradients of the block's weights, in the order of BlockWeights::All(), and of its input.
  std::vector<at::Tensor> BlockGradients(int block, const at::Tensor& grad, int64_t batch);
  void BackwardEmbedding(const at::Tensor& grad, const at::Tensor& inputs);

  const ModelLayout& layout_;
  const Llama& model_;
  const ModelWeights& weights_;
  UnitGatherer& gatherer_;
  GradientReducer& reducer_;
  const at::Tensor logits_;              // Scratch of the loss, [chunk, V].
  std::vector<WeightView> block_views_;  // Same for all blocks.
  const Recompute recompute_;
  std::vector<Kept> kept_;  // By block.
  at::Tensor grad_hidden_;  // Scratch of the loss, [B * T, D].
  bool embedding_in_flight_ = false;
};

}  // namespace fedshard::engine
