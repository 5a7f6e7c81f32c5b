// Reads a checkpoint by logical parameter, whatever mesh wrote it: intervals are looked up in the
// manifest, only the file chunks that hold them are read, and every chunk read is checked against
// its checksum. Memory: one chunk. Immutable after Open; one thread per object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/parameter_source.h"

namespace fedshard::checkpoint {

class CheckpointReader {
 public:
  // Reads the manifest of the checkpoint folder `path` and checks that its files are there with
  // their sizes. NOT_FOUND: no such folder; DATA_LOSS: no or garbled manifest, a file missing,
  // truncated or grown (named).
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& path);
  ~CheckpointReader();

  const std::string& path() const;
  const Manifest& manifest() const;
  bool Has(const std::string& kind) const;
  // A view of one kind ("parameters", "first_moment", …) of group `group` (moments; a group that
  // the checkpoint does not have takes those of group modulo the number of groups).
  // Lives no longer than the reader. NOT_FOUND when the kind is not stored.
  absl::StatusOr<std::unique_ptr<ParameterSource>> Source(const std::string& kind,
                                                          int32_t group) const;
  // Reads everything and checks every checksum; DATA_LOSS names file and byte range.
  absl::Status Verify() const;

 private:
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct CheckpointEntry {
  std::string path;
  int64_t step = 0;
};

// The checkpoints of a job's directory that have a manifest, newest first. NOT_FOUND: no directory.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory);

}  // namespace fedshard::checkpoint
