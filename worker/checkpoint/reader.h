// Reads a checkpoint by logical parameter, whatever mesh wrote it: intervals are looked up in the
// manifest, only the file chunks that hold them are read, and every chunk read is checked against
// its checksum. Memory: one chunk. One thread per object.
#pragma once

#include <memory>
#include <optional>
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
  // truncated or grown (named); UNIMPLEMENTED: of a newer format.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& path);
  ~CheckpointReader();

  const std::string& path() const;
  const Manifest& manifest() const;
  bool Has(const std::string& kind) const;
  // What is stored, sorted.
  std::vector<std::string> Kinds() const;
  std::vector<int32_t> GroupsOf(const std::string& kind) const;
  // The parameters of one kind and group that it has, with their elements (up to the last that is
  // stored), in the order of the files.
  struct Parameter {
    std::string name;
    int64_t elements = 0;
  };
  std::vector<Parameter> ParametersOf(const std::string& kind, int32_t group) const;
  // A view of one kind ("parameters", "first_moment", …) of group `group` (moments; a group that
  // the checkpoint does not have takes those of group modulo the number of groups).
  // Lives no longer than the reader. NOT_FOUND when the kind is not stored.
  // Its Read: NOT_FOUND for a parameter that is not stored, or not up to the end of the range (the
  // model is another); DATA_LOSS for a chunk that does not match its checksum.
  absl::StatusOr<std::unique_ptr<ParameterSource>> Source(const std::string& kind,
                                                          int32_t group) const;
  // Reads everything and checks every checksum; DATA_LOSS names file and byte range.
  absl::Status Verify() const;
  // Bytes of chunks read from files so far.
  int64_t bytes_read() const;

 private:
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What is wrong with each file of a checkpoint, the manifest first.
struct FileCheck {
  std::string name;
  int64_t bytes = 0;
  absl::Status status;
};
// Reads everything, as CheckpointReader::Verify, but goes on after the first error. NOT_FOUND: no
// such folder. Only the manifest is listed when it cannot be read.
absl::StatusOr<std::vector<FileCheck>> CheckFiles(const std::string& path);

struct CheckpointEntry {
  std::string path;
  int64_t step = 0;
};

// The checkpoints of a job's directory that have a manifest, newest first. NOT_FOUND: no directory.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory);

// Names of folders in it that are being written, or were left half-written. NOT_FOUND: no
// directory.
absl::StatusOr<std::vector<std::string>> ListUnfinished(const std::string& directory);

struct Found {
  std::optional<CheckpointEntry> entry;
  std::vector<std::string> skipped;  // Newer ones, each with what is wrong with it.
};
// The newest checkpoint of a job's directory that verifies: reads all of it. NOT_FOUND: no
// directory.
absl::StatusOr<Found> NewestGood(const std::string& directory);

}  // namespace fedshard::checkpoint
