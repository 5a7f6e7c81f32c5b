// A job's checkpoint directory: which folders in it are checkpoints, which are left over, and what
// may be deleted. Used by one rank of a job at a time (its leader). Private to this room.
//
//   step-00000400                    a checkpoint, if it has a manifest
//   step-00000400.partial-ATTEMPT    being written
//   step-00000400.replaced-ATTEMPT   had the name until the same step was written again
//   step-00000400.deleted-ATTEMPT    on its way out
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/checkpoint/manifest.h"

namespace fedshard::checkpoint {

struct JobDirectory {
  std::string directory;
  std::string job;
  std::string attempt;

  std::string PathOf(int64_t step) const;
  std::string PartialPathOf(int64_t step) const;
  std::string ReplacedPathOf(int64_t step) const;
  std::string DeletedPathOf(int64_t step) const;
};

// At the start of a leader's life, before any rank of it writes: removes what former lives left
// half-done, whatever their attempt was called. So no file of theirs is taken for one of this life,
// and a writer of theirs that still runs completes nothing. A replaced checkpoint whose successor
// never came gets its name back.
absl::Status RemoveLeftovers(const JobDirectory& place);
// FAILED_PRECONDITION when another job's checkpoint, or one of a newer format, has the name.
absl::Status CheckReplaceable(const JobDirectory& place, int64_t step);
// The files of `manifest` are on disk in the partial folder of its step: adds the manifest and
// gives the folder its final name. Fills in an empty `created` or `version`.
absl::Status Publish(const JobDirectory& place, Manifest manifest);
// After `step` was published: keeps it and the newest before it, `keep` in all (0: all of them).
// Newer ones, those of other jobs and those without a readable manifest are not touched. Also
// removes what this attempt left behind for earlier steps.
absl::Status Prune(const JobDirectory& place, int64_t step, int64_t keep);

}  // namespace fedshard::checkpoint
