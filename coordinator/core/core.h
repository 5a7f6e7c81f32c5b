// The coordinator's decisions as one pure state machine: no I/O, clock, thread, randomness or gRPC.
// Owned by the service loop; not thread-safe. Same commands at the same times give the same state
// and the same effects, byte for byte.
#pragma once

#include <string>

#include "common/clock.h"
#include "coordinator/core/commands.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/state.h"

namespace fedshard::core {

struct CoreOptions {
  int64_t node_lost_after_us = 10'000'000;
  int32_t stop_grace_ms = 2'000;            // TERM to KILL.
  int64_t stop_deadline_us = 10'000'000;    // After this an unconfirmed stop is reported as such.
  int64_t start_deadline_us = 120'000'000;  // Placed to all ranks ready.
  int64_t vote_deadline_us = 60'000'000;    // Plan to all votes.
  int64_t echo_wait_us = 1'000'000;         // A failed collective to the death that explains it.
  size_t max_jobs_queued = 1000;
  size_t max_rounds_kept = 1000;  // Per job, oldest dropped from the listing.
  size_t max_request_ids = 10'000;
  size_t max_former_incarnations = 16;  // Per node.
};

class Core {
 public:
  explicit Core(CoreOptions options);

  // Applies one command at `now` and says what follows. Never fails: what is refused is a reply or
  // an event.
  Effects Apply(const Command& command, Instant now);

  // For queries and metrics, on the owner's thread.
  const State& state() const { return state_; }

 private:
  // Applies a command that is no Tick, and records it when it changed the durable state.
  void ApplyOne(const Command& command, Instant now, Effects& effects);

  CoreOptions options_;
  State state_;
};

}  // namespace fedshard::core
