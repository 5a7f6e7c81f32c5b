// The gathered form of the units: preallocated buffers and the all-gathers that fill them.
// Blocks share a ring of two buffers, block i always in buffer i mod 2, so that graphs kept from
// the forward pass find their weights at the same place in the backward pass; embedding and head
// have their own. Owned by the engine; used by one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/collective/comm.h"
#include "worker/engine/unit_layout.h"

namespace fedshard::engine {

class UnitGatherer {
 public:
  // With one shard the gathered unit is the master itself: no buffers, no transfers.
  // poison: released buffers are filled with NaN, to show a use after release.
  UnitGatherer(const ModelLayout& layout, const std::vector<at::Tensor>& masters,
               collective::Comm& shard, bool poison);

  // The whole unit, [padded_size]; the same tensor for ever. Its contents count between Wait and
  // Release.
  const at::Tensor& full(int unit) const { return full_[unit]; }

  // Begins to gather `unit`; nothing that lives in its buffer may be in use.
  void Start(int unit);
  void Wait(int unit);
  void Release(int unit);
  // After an error: waits for what is in flight and forgets it.
  void Abandon();

 private:
  const ModelLayout& layout_;
  const std::vector<at::Tensor>& masters_;
  collective::Comm& shard_;
  const bool poison_;
  std::vector<at::Tensor> full_;               // By unit.
  std::vector<collective::Ticket> in_flight_;  // By unit. After full_: waits in its destructor.
};

}  // namespace fedshard::engine
