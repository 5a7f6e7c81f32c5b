#include "planner/memory.h"

#include <algorithm>
#include <bit>

#include "planner/activations.h"
#include "planner/staging.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::planner {
namespace {

constexpr int64_t kFloat = 4, kBf16 = 2;

// Sums over the units of a model on this mesh, in elements.
struct Model {
  explicit Model(const MemoryOptions& options)
      : layout(options.model, options.shards), shard(layout.padded_count() / options.shards) {
    for (size_t unit = 0; unit < layout.units().size(); ++unit) {
      const int64_t size = layout.units()[unit].padded_size;
      parts.push_back(size / options.shards);
      if (!(layout.tied() && unit == 0)) largest = std::max(largest, size);
    }
    block = layout.units()[layout.block_unit(0)].padded_size;
    ends = layout.padded_count() - block * layout.blocks();
  }

  // Embedding, head and a ring of two blocks.
  int64_t gathered() const { return ends + std::min(2, layout.blocks()) * block; }
  // Two that take turns, and that of a tied embedding.
  int64_t slots() const {
    return 2 * largest + (layout.tied() ? layout.units()[0].padded_size : 0);
  }

  const engine::ModelLayout layout;
  std::vector<int64_t> parts;  // Shards, by unit.
  int64_t shard = 0;           // All of them.
  int64_t largest = 0;         // Unit that takes its turn in the gradient buffers.
  int64_t block = 0;
  int64_t ends = 0;  // Embedding and head.
};

void AddGather(const MemoryOptions& o, const Model& model, MemoryPlan& plan) {
  if (o.shards == 1 && !o.bf16) return;
  plan.items.push_back({"gather buffers", model.gathered() * (o.bf16 ? kBf16 : kFloat),
                        "embedding, head and two blocks, whole, as computed with"});
  if (o.bf16 != o.gather_bf16 && o.shards > 1) {
    plan.items.push_back({"gather arrivals", model.gathered() * (o.gather_bf16 ? kBf16 : kFloat),
                          "the same in the type that travels"});
  }
}

void AddGradients(const MemoryOptions& o, const Model& model, MemoryPlan& plan) {
  const bool locally = o.accumulate_locally && o.shards > 1 && o.accumulation > 1;
  const int64_t count = locally ? 1 : o.accumulation;
  const int64_t levels = std::bit_width(static_cast<uint64_t>(count));
  plan.items.push_back({"gradient shards", levels * model.shard * kFloat,
                        "fp32; levels of the tree over micro-batches: " + std::to_string(levels)});
  if (o.shards > 1) {
    const int64_t wire = o.reduce_bf16 ? 2 * kBf16 : 0;
    plan.items.push_back({"gradient buffers", model.slots() * (kFloat + wire),
                          "whole gradients of two units on their way to the shard group"});
    int64_t staging = 0;
    if (o.reduce_bf16) {
      const int64_t depth = std::bit_width(static_cast<unsigned>(o.shards - 1)) - 1;
      staging = depth * *std::max_element(model.parts.begin(), model.parts.end());
    } else {
      staging = StagingElements({model.parts, model.layout.tied(), count}, o.shards);
    }
    plan.items.push_back(
        {"gradient addends", staging * kFloat, "what arrives from the shard group to be added up"});
  }
  if (locally) {
    plan.items.push_back({"local gradients", model.layout.padded_count() * kFloat,
                          "whole, summed over micro-batches (accumulate: local)"});
  }
  if (o.replicas > 1) {
    plan.items.push_back({"replica addends", model.shard * kFloat * (o.replicas - 1) / o.replicas,
                          "what arrives from the replicas to be added up"});
  }
}

void AddMicroBatch(const MemoryOptions& o, MemoryPlan& plan) {
  const int64_t element = o.bf16 ? kBf16 : kFloat;
  const int64_t tokens = o.micro_batch * o.sequence_length;
  const int64_t inputs = (o.accumulation + 2) * o.micro_batch * (o.sequence_length + 1) * 8;
  plan.items.push_back({"logits",
                        std::min(o.loss_chunk_tokens, tokens) * o.model.vocab_size * element,
                        "of one chunk of the loss"});
  plan.items.push_back({"loss gradient", tokens * o.model.hidden_size * element,
                        "of the normed output of the last block"});
  plan.items.push_back({"tokens and angles", inputs + o.sequence_length * o.model.head_dim * kFloat,
                        "inputs, targets and the tables of rotary embeddings"});
  const Activations activations = PlanActivations(o);
  plan.items.push_back({"activations", activations.kept, "kept for the backward pass"});
  plan.items.push_back(
      {"transient", activations.transient,
       "gradients of activations and of one block's weights, at the worst moment"});
}

void AddBetweenSteps(const MemoryOptions& o, const Model& model, MemoryPlan& plan) {
  const int64_t shard = model.shard * kFloat;
  const int64_t moments = o.moments * model.shard * (o.bf16_moments ? kBf16 : kFloat);
  int64_t averaging = 0, outer = 0;
  if (o.groups > 1) {
    outer = o.outer_moments * shard + (o.compression ? shard : 0);
    // The staged mean, the base, what error feedback lost of this rank's parts, and chunks.
    averaging = shard + (o.outer_base ? shard : 0) + (o.overlap ? shard : 0) +
                (o.compression ? shard / o.groups : 0) + o.chunk_bytes * (o.compression ? 4 : 1);
    plan.items.push_back(
        {"averaging", averaging, "staged mean, base of the outer optimizer, chunks", false});
    if (outer > 0) {
      plan.items.push_back({"outer state", outer, "outer moments and residuals", false});
    }
  }
  if (o.checkpoints) {
    plan.items.push_back(
        {"checkpoint copy", shard + moments + outer, "while a checkpoint is being written", false});
  }
}

}  // namespace

int64_t MemoryPlan::step() const {
  int64_t sum = 0;
  for (const MemoryItem& item : items) {
    if (item.in_step) sum += item.bytes;
  }
  return sum;
}

int64_t MemoryPlan::total() const {
  int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

int64_t MemoryPlan::Bytes(const std::string& name) const {
  for (const MemoryItem& item : items) {
    if (item.name == name) return item.bytes;
  }
  return 0;
}

MemoryPlan PlanMemory(const MemoryOptions& options) {
  const Model model(options);
  MemoryPlan plan;
  plan.items.push_back({"parameters", model.shard * kFloat, "fp32 masters of this rank's shard"});
  if (options.moments > 0) {
    plan.items.push_back({"moments",
                          options.moments * model.shard * (options.bf16_moments ? kBf16 : kFloat),
                          "of the optimizer"});
  }
  AddGather(options, model, plan);
  AddGradients(options, model, plan);
  AddMicroBatch(options, plan);
  AddBetweenSteps(options, model, plan);
  return plan;
}

}  // namespace fedshard::planner
