#include "planner/activations.h"

#include <algorithm>
#include <initializer_list>

namespace fedshard::planner {
namespace {

constexpr int64_t kFloat = 4;

// Sizes in bytes of the tensors that a block makes, named as in worker/engine/llama.cc.
struct Sizes {
  explicit Sizes(const MemoryOptions& o) {
    const ModelConfig& m = o.model;
    const int64_t element = o.bf16 ? 2 : kFloat;
    fp32 = !o.bf16;
    tokens = o.micro_batch * o.sequence_length;
    logits = std::min(tokens, o.loss_chunk_tokens) * m.vocab_size * element;
    const int64_t queries = m.num_attention_heads * m.head_dim;
    const int64_t keys = m.num_key_value_heads * m.head_dim;
    hidden = tokens * m.hidden_size * element;
    qkv = tokens * (queries + 2 * keys) * element;
    attended = tokens * queries * element;
    feed_forward = tokens * m.intermediate_size * element;
    scales = tokens * kFloat;
    log_sums = tokens * m.num_attention_heads * kFloat;
    weight_qkv = m.hidden_size * (queries + 2 * keys) * element;
    weight_output = m.hidden_size * queries * element;
    weight_gate_up = 2 * m.hidden_size * m.intermediate_size * element;
    weight_down = m.hidden_size * m.intermediate_size * element;
    head = m.vocab_size * m.hidden_size * element;
    head_fp32 = m.vocab_size * m.hidden_size * kFloat;
  }

  // What a whole graph keeps: the attention's part, and what follows it.
  int64_t attention_part() const { return hidden + scales + qkv + attended + log_sums; }
  int64_t feed_forward_part() const { return 2 * hidden + scales + 3 * feed_forward; }

  // oneDNN's fp32 products copy a transposed factor, and give a result of their own instead of
  // writing where it is wanted. MKL's do neither, nor those of bf16: there the formula is high.
  int64_t Copied(int64_t bytes) const { return fp32 ? bytes : 0; }

  bool fp32;
  int64_t logits;
  int64_t tokens, hidden, qkv, attended, feed_forward, scales, log_sums;
  int64_t weight_qkv, weight_output, weight_gate_up, weight_down, head, head_fp32;
};

// Above what all blocks keep, while the last block's gradients are computed: the operations one
// after the other, each with its inputs, its results and what is not yet freed.
int64_t BlockBackward(const Sizes& s) {
  const int64_t feed_forward_weights = s.weight_down + s.weight_gate_up;
  const int64_t down = s.hidden + s.feed_forward + s.weight_down + s.Copied(s.hidden);
  const int64_t swiglu = s.hidden + 2 * s.feed_forward + s.weight_down;
  const int64_t gate_up =
      2 * s.hidden - s.feed_forward + feed_forward_weights + s.Copied(2 * s.feed_forward);
  const int64_t attention = s.hidden - s.feed_forward_part() + s.attended + s.qkv +
                            feed_forward_weights + s.weight_output;
  const int64_t rotary = s.hidden - s.feed_forward_part() - s.attended - s.log_sums + s.qkv +
                         feed_forward_weights + s.weight_output;
  const int64_t qkv = 2 * s.hidden - s.feed_forward_part() - s.attended - s.log_sums +
                      feed_forward_weights + s.weight_output + s.weight_qkv + s.Copied(s.qkv);
  return std::max({down, swiglu, gate_up, attention, rotary, qkv});
}

}  // namespace

Activations PlanActivations(const MemoryOptions& options) {
  const Sizes s(options);
  const int64_t graph = s.attention_part() + s.feed_forward_part();
  int64_t others = 0;
  switch (options.recompute) {
    case Recompute::kNone:
      others = graph;
      break;
    case Recompute::kSelective:
      others = s.attention_part();
      break;
    case Recompute::kBlock:
      break;
  }
  Activations result;
  // Every block's input and the last one's output.
  const int64_t blocks = options.model.num_hidden_layers;
  result.kept = (blocks + 1) * s.hidden + (blocks - 1) * others + graph;
  // The head's product before it is written into the gradient; the normed output.
  const int64_t head = s.hidden + s.scales + s.head + s.Copied(2 * s.logits);
  // When blocks have let go of everything; on GPUs only, but hardly ever the worst.
  const int64_t embedding = s.hidden +
                            (options.bf16 ? s.tokens * options.model.hidden_size * kFloat : 0) +
                            s.head_fp32 - result.kept;
  result.transient = std::max({BlockBackward(s), head, embedding});
  return result;
}

}  // namespace fedshard::planner
