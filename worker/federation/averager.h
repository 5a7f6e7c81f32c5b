// Federated averaging of parameter shards: out of place and in two steps, so that nobody applies an
// average before everybody agrees on its bits. Owned and called by the training thread.
//
// A committed round: the weighted mean of the groups' shards, then the outer optimizer on the
// pseudo-gradient. With compression the groups exchange their weighted changes since the last
// commit instead, encoded, in two hops: each rank sums one part of every chunk, its own
// contribution as it is, and sends the encoded sum to all. What rounding loses in either hop is
// kept in a residual and added in the next round (error feedback, arXiv:1901.09847). The residual
// counts in units of the mean, so that a group's debt does not change with its weight. All ranks of
// a federated group compute the same bits.
//
// Memory beyond the shards, in units of one: 1 for the staged mean; 1 for the base with an outer
// optimizer or compression; 1 (momentum, nesterov) or 2 (adam) for the outer state; 1 for the
// residual, and 1/F more while an average is pending; and some chunks.
//
// Bytes on the wire per round and rank: plain 2 (F-1)/F times 4 an element, to a rounding of the
// parts; compressed 2 (F-1) times an encoded part of ceil(elements / 256 F) blocks of 256, per
// chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "worker/collective/comm.h"
#include "worker/federation/outer_optimizer.h"
#include "worker/federation/wire_codec.h"

namespace fedshard::federation {

struct AveragerOptions {
  int64_t chunk_bytes = 4 << 20;
  OuterOptimizerOptions outer = {};
  Compression compression = Compression::kNone;
};

// State that outlives a round, for checkpoints: one flat tensor per unit, as the shards.
struct AveragerState {
  std::string kind;                 // "outer_first_moment", "outer_second_moment", "residual".
  bool same_in_all_groups = false;  // Otherwise a debt of its group alone: a new group has none.
  std::vector<at::Tensor> tensors;
};

class Averager {
 public:
  // `shards`: the engine's master shards, which must outlive this and hold the parameters that
  // training starts from, or Restart() must follow.
  Averager(std::vector<at::Tensor>& shards, collective::Comm& federation,
           const AveragerOptions& options);
  ~Averager();

  // Takes the shards as they are as the base of the next pseudo-gradient: after they were loaded.
  void Restart();

  // Begins the next Average(weight) on a copy of the shards as they are now, in a thread of its
  // own: training may change the shards meanwhile, and nothing else may use the federated group.
  // Commit then adds the change, new parameters - copy, to the shards; so the groups differ
  // afterwards by what each trained since. Memory: the copy.
  void Begin(double weight);
  // Computes the new parameters, or waits for what Begin began with this weight; `weight` is this
  // rank's own and all sum to 1. Collective over the federated group. Returns the hash of the
  // result; the shards stay as they are.
  uint64_t Average(double weight);
  // Makes them current. Throws c10::Error without an average.
  void Commit();
  // Forgets them, and with them what the outer optimizer and the error feedback would have kept.
  void Abort();

  // Replaces other per-unit tensors (optimizer moments) by their weighted means at once,
  // uncompressed; fp32 or bf16. Collective over the federated group.
  void AverageState(const std::vector<at::Tensor>& tensors, double weight);

  // May be written between rounds.
  std::vector<AveragerState> State();

 private:
  // Elements [first, first + count) of shard `unit`.
  struct Chunk {
    size_t unit = 0;
    int64_t first = 0;
    int64_t count = 0;
    at::Tensor Of(const std::vector<at::Tensor>& tensors) const;
  };

  bool compresses() const { return codec_.has_value(); }
  // What is averaged: the shards, or the copy of them that Begin made.
  const std::vector<at::Tensor>& source() const { return overlapped_ ? copy_ : shards_; }
  uint64_t Compute(double weight);
  // Waits for the thread.
  void Join();
  // Elements of each group's part of a chunk on the wire.
  int64_t PartOf(const Chunk& chunk) const;
  // This group's weighted change since the last commit with what is owed from before, padded to
  // whole parts.
  at::Tensor OwedChange(const Chunk& chunk) const;
  // Leaves base + mean change in the staging copy, and what the second hop lost of this rank's part
  // in `lost_`.
  void ExchangeChanges(const Chunk& chunk);
  // The residual after a commit of this average.
  void KeepResidual(const Chunk& chunk, const at::Tensor& lost);
  at::Tensor Result(const Chunk& chunk, bool keep);

  std::vector<at::Tensor>& shards_;
  collective::Comm& federation_;
  std::optional<WireCodec> codec_;
  std::vector<Chunk> chunks_;
  OuterOptimizer outer_;
  std::vector<at::Tensor> staged_;
  std::vector<at::Tensor> base_;      // As of the last commit; empty when nothing needs it.
  std::vector<at::Tensor> residual_;  // Empty without compression.
  std::vector<at::Tensor> lost_;      // By chunk, while an average is pending.
  double weight_ = 0;                 // Of this group in the average that is pending.
  bool pending_ = false;

  std::vector<at::Tensor> copy_;  // Empty until the first Begin.
  bool overlapped_ = false;       // The average that is pending, or under way, is of the copy.
  std::thread thread_;
  uint64_t begun_hash_ = 0;  // Of the thread's result, once it has ended.
  std::exception_ptr begun_error_;
};

}  // namespace fedshard::federation
