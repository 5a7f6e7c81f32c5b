#include "worker/engine/inference_pass.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "worker/kernels/chunked_cross_entropy.h"
#include "worker/kernels/matrix_product.h"

namespace fedshard::engine {

InferencePass::InferencePass(const ModelLayout& layout, const Llama& model,
                             const ModelWeights& weights, UnitGatherer& gatherer,
                             const at::Tensor& logits)
    : layout_(layout), model_(model), weights_(weights), gatherer_(gatherer), logits_(logits) {}

double InferencePass::LossSum(const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  const int64_t length = tokens.size(1) - 1;
  const at::Tensor hidden = Hidden(tokens.narrow(1, 0, length));
  const at::Tensor targets = tokens.narrow(1, 1, length).reshape(-1);
  const at::Tensor loss = kernels::ChunkedCrossEntropy(hidden, weights_.head, targets, logits_);
  ReleaseHead();
  return loss.item<double>();
}

at::Tensor InferencePass::NextTokenLogits(const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = Hidden(tokens.unsqueeze(0));
  const at::Tensor last = hidden.narrow(0, hidden.size(0) - 1, 1);
  const at::Tensor logits = kernels::TimesTransposed(last, weights_.head).view({-1}).to(at::kFloat);
  ReleaseHead();
  return logits;
}

at::Tensor InferencePass::Decode(const at::Tensor& tokens, const KeyValueCache& cache) {
  const at::NoGradGuard no_grad;
  const int64_t batch = tokens.size(0), length = tokens.size(1);
  const at::Tensor hidden = Hidden(tokens, &cache).view({batch, length, -1});
  const at::Tensor last = hidden.select(1, length - 1).contiguous();
  const at::Tensor logits = kernels::TimesTransposed(last, weights_.head);
  ReleaseHead();
  return logits;
}

at::Tensor InferencePass::Hidden(const at::Tensor& inputs, const KeyValueCache* cache) {
  gatherer_.Start(layout_.embedding_unit());
  gatherer_.Wait(layout_.embedding_unit());
  gatherer_.Start(layout_.block_unit(0));
  at::Tensor x = at::embedding(weights_.embedding, inputs.reshape(-1));
  if (!layout_.tied()) gatherer_.Release(layout_.embedding_unit());
  for (int block = 0; block < layout_.blocks(); ++block) {
    const int unit = layout_.block_unit(block);
    gatherer_.Wait(unit);
    if (block + 1 < layout_.blocks()) {
      gatherer_.Start(unit + 1);
    } else if (!layout_.tied()) {
      gatherer_.Start(layout_.head_unit());
    }
    if (cache == nullptr) {
      x = model_.Block(x, weights_.blocks[block], inputs.size(0));
    } else {
      const BlockCache of_block = cache->Of(block);
      x = model_.Block(x, weights_.blocks[block], inputs.size(0), &of_block);
    }
    gatherer_.Release(unit);
  }
  gatherer_.Wait(layout_.head_unit());
  return model_.FinalNorm(x, weights_.final_norm);
}

void InferencePass::ReleaseHead() { gatherer_.Release(layout_.head_unit()); }

}  // namespace fedshard::engine
