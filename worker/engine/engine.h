// One rank's share of a sharded Llama: parameters, the schedule of a step, and what follows from
// them. Owned and called by one thread. The Comms must outlive it.
//
// Shapes: tokens are int64 [B, T+1]; every call uses the same B and T for training.
// Errors: CommError from the collectives; NonFiniteError; c10::Error for programming errors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/model_config.h"
#include "worker/collective/comm.h"
#include "worker/engine/shard_loading.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

// Loss or gradient norm is NaN or infinite; the parameters are those before the step. The same on
// every rank of the group: `replica` and `shard` are of the first rank, in the order of micro-batch
// ids, whose own loss is not finite; when only the norm is not, of the first shard that makes it
// so.
class NonFiniteError : public std::runtime_error {
 public:
  NonFiniteError(const std::string& what, int replica, int shard)
      : std::runtime_error(what), replica(replica), shard(shard) {}
  int replica;
  int shard;
};

enum class Precision { kFp32, kBf16 };

// What of a block's forward pass is computed again in its backward pass instead of being kept:
// nothing, all but the block's input, or all that follows its attention.
enum class Recompute { kNone, kBlock, kSelective };

struct OptimizerOptions {
  enum class Type { kAdamW, kSgd };
  Type type = Type::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // Matrices only.
  double clip = 1.0;          // 0 = off.
  double momentum = 0.0;      // SGD.
  Precision moments = Precision::kFp32;
};

struct EngineOptions {
  ModelConfig model;
  OptimizerOptions optimizer;
  int64_t sequence_length = 0;  // T
  int64_t micro_batch = 1;      // B
  int64_t accumulation = 1;     // M
  int64_t loss_chunk_tokens = 256;
  Precision precision = Precision::kFp32;         // Of the computation; masters are fp32 always.
  Precision gather_precision = Precision::kFp32;  // On the wire; it rounds parameters.
  Precision reduce_precision = Precision::kFp32;  // On the wire; sums are fp32 always.
  Recompute recompute = Recompute::kNone;
  // Gradients of all micro-batches are summed whole on each rank and reduce-scattered once.
  bool accumulate_locally = false;
  bool poison_buffers = false;  // Debugging: NaN into gather buffers once released.
  bool cuda = false;
  int gpu = 0;
};

struct StepResult {
  double loss = 0;           // Sum over the group's tokens / tokens, nats.
  double gradient_norm = 0;  // Before clipping.
  int64_t tokens = 0;        // Of the whole group.
};

struct LossSum {
  double loss_sum = 0;  // Nats.
  int64_t tokens = 0;
};

// What a rank keeps from step to step, each as one flat tensor per unit in the layout of the
// masters.
enum class StateKind { kParameters, kFirstMoment, kSecondMoment };

class Engine {
 public:
  // `shard` and `replica` as in MeshComms. Allocates everything that a step needs.
  Engine(const EngineOptions& options, collective::Comm& shard, collective::Comm& replica);
  ~Engine();

  // Weights from the seed, the same for every mesh: each logical tensor has its own stream derived
  // from (seed, tensor name).
  void InitializeRandom(uint64_t seed);

  // This rank's part of `kind`, piece by piece from `fill`; padding is zeroed. Throws what `fill`
  // throws; the state is undefined then.
  void Load(StateKind kind, const FillFunction& fill);

  // The same for other tensors in the layout of the masters, like an averager's.
  void LoadInto(const std::vector<at::Tensor>& tensors, const FillFunction& fill);

  // The kinds that this engine's optimizer has.
  std::vector<StateKind> StateKinds() const;
  // fp32, or bf16 for moments kept so. Valid for the engine's life; may be written between steps.
  const std::vector<at::Tensor>& State(StateKind kind) const;
  // Which parts of logical parameters the shard of `unit` holds; where in the shard.
  std::vector<ShardPiece> Pieces(int unit) const;
  const ModelLayout& layout() const;
  // Steps of the optimizer: without those that were not finite.
  int64_t optimizer_steps() const;
  void set_optimizer_steps(int64_t steps);

  // One optimizer step. micro_batches: M tensors [B, T+1] of this rank.
  // Global micro-batch ids: id = r*(M*S) + m*S + s; sums follow the pairwise tree over ids.
  StepResult Step(const std::vector<at::Tensor>& micro_batches, double learning_rate);

  // Forward only; this rank's part. Collective: every rank of the shard group calls it the same
  // number of times.
  LossSum Evaluate(const at::Tensor& tokens);

  // Forward only: logits [V] (fp32, CPU) after the last of `tokens`, int64 [n], 1 <= n <= T.
  // Collective over the shard group: every rank passes the same tokens.
  at::Tensor NextTokenLogits(const at::Tensor& tokens);

  // fp32 master shards, one per unit, in unit order: what is averaged and hashed. The averager
  // writes into them between steps.
  std::vector<at::Tensor>& master_shards();

  // Hash of all master shards of this rank.
  uint64_t ShardHash() const;

  // Hex hash over the logical tensors in name order; the same for every mesh. Collective over the
  // shard group.
  std::string ParameterHash();

  int64_t parameters() const;         // Logical.
  int64_t padded_parameters() const;  // Of all units, padding included.

  // For tests and tools: the logical tensor `name`, gathered. Collective over the shard group.
  at::Tensor GatherParameter(const std::string& name);
  std::vector<std::string> ParameterNames() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fedshard::engine
