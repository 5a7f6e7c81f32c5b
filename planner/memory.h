// How much memory a rank needs: the formula of docs/memory.md, from the shape of the model and the
// options of the job alone. Pure arithmetic; stateless; any thread.
//
// Bytes of tensors, exact in the large ones; without small ones (scalars, block sums of norms) and
// without what libraries keep for themselves. tests/numeric/memory_test.cc measures it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model_config.h"

namespace fedshard::planner {

// What a trainer on a CPU holds besides tensors: its own code, LibTorch, gRPC and their heaps
// (docs/memory.md says how it was measured).
inline constexpr int64_t kProcessBytes = int64_t{175} << 20;

enum class Recompute { kNone, kBlock, kSelective };

struct MemoryOptions {
  ModelConfig model;
  int groups = 1, replicas = 1, shards = 1;
  int64_t sequence_length = 0;
  int64_t micro_batch = 1;
  int64_t accumulation = 1;
  int64_t loss_chunk_tokens = 256;
  bool bf16 = false;         // Compute.
  bool gather_bf16 = false;  // On the wire.
  bool reduce_bf16 = false;
  bool accumulate_locally = false;
  Recompute recompute = Recompute::kNone;
  int moments = 2;  // Tensors that the optimizer keeps: AdamW 2, SGD with momentum 1, SGD 0.
  bool bf16_moments = false;
  // Of the averaging between groups; without effect with one group.
  int outer_moments = 0;    // momentum and nesterov 1, adam 2.
  bool outer_base = false;  // An outer optimizer or compression is used.
  bool compression = false;
  bool overlap = false;  // Averaging begins before the end of a round.
  int64_t chunk_bytes = 4 << 20;
  bool checkpoints = false;
};

struct MemoryItem {
  std::string name;
  int64_t bytes = 0;
  std::string what;
  // Whether it is there during a step; what is not, comes between steps and adds to the rest but
  // not to activations.
  bool in_step = true;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;  // Those that this job has; in_step ones first.

  int64_t step() const;   // Peak of tensors during training steps, without averaging.
  int64_t total() const;  // All items.
  int64_t Bytes(const std::string& name) const;  // 0 when there is no such item.
};

// Of the rank that needs most. Throws std::invalid_argument, naming the field, when the model is
// none.
MemoryPlan PlanMemory(const MemoryOptions& options);

}  // namespace fedshard::planner
