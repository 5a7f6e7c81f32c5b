// The gathered form of the units: preallocated buffers and the all-gathers that fill them.
// Blocks share a ring of two buffers, block i always in buffer i mod 2, so that graphs kept from
// the forward pass find their weights at the same place in the backward pass; embedding and head
// have their own. Owned by the engine; used by one thread.
//
// The buffers have the type of the computation. When another travels, the units arrive in buffers
// of that type besides, this rank's own part too, and are converted. In bf16 compute the numbers
// are the same either way; in fp32 compute a bf16 wire rounds them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/collective/comm.h"
#include "worker/engine/engine.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

class UnitGatherer {
 public:
  // With one shard there are no transfers, and in fp32 the gathered unit is the master itself.
  // poison: released buffers are filled with NaN, to show a use after release.
  UnitGatherer(const ModelLayout& layout, const std::vector<at::Tensor>& masters,
               collective::Comm& shard, bool poison, Precision compute = Precision::kFp32,
               Precision wire = Precision::kFp32);

  // The whole unit as it is computed with, [padded_size]; the same tensor for ever. Its contents
  // count between Wait and Release.
  const at::Tensor& full(int unit) const { return full_[unit]; }

  // Begins to gather `unit`; nothing that lives in its buffer may be in use.
  void Start(int unit);
  void Wait(int unit);
  void Release(int unit);
  // The whole unit in fp32, the masters' own bits. Valid until the next Start; collective.
  at::Tensor GatherMaster(int unit);
  // After an error: waits for what is in flight and forgets it.
  void Abandon();

 private:
  // A buffer for each unit, shared as the top of this page says.
  std::vector<at::Tensor> Allocate(at::ScalarType type) const;
  // Writes this rank's part into `whole` and begins to gather the rest.
  collective::Ticket Gather(int unit, const at::Tensor& whole);

  const ModelLayout& layout_;
  const std::vector<at::Tensor>& masters_;
  collective::Comm& shard_;
  const bool poison_;
  const bool in_place_;                        // The masters are what is computed with.
  std::vector<at::Tensor> full_;               // By unit.
  std::vector<at::Tensor> arrivals_;           // By unit; empty when they arrive in full_.
  std::vector<collective::Ticket> in_flight_;  // By unit. After full_: waits in its destructor.
};

}  // namespace fedshard::engine
