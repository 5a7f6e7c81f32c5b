// What one rank does for its checkpoints, without the thread: writes its file and, on the leader,
// gathers the descriptions of the others and publishes the folder. Used by one thread at a time.
// Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/writer.h"

namespace fedshard::checkpoint {

struct CheckpointRequest {
  Manifest manifest;  // Without files.
  std::vector<FlatTensor> tensors;
  const char* data = nullptr;  // Of all tensors, one after the other.
  bool copy_failed = false;    // There was no memory for `data`.
  int64_t started_us = 0;      // Steady clock.
};

// Bytes of its elements; 0 when the dtype is unknown, which is refused when it is written.
int64_t BytesIn(const FlatTensor& tensor);

class CheckpointJob {
 public:
  // On the leader: removes what former lives left half-done.
  explicit CheckpointJob(WriterOptions options);

  bool IsLeader() const { return options_.leader; }
  // Never throws; trouble is in the result's error.
  WriteResult Write(const CheckpointRequest& request);
  // Tells the leader that this rank's part of a checkpoint will not come, since that of step
  // `former` took too long.
  WriteResult Skip(const Manifest& manifest, int64_t former);

 private:
  absl::Status WritePart(const CheckpointRequest& request, const std::string& folder);
  // So that the leader need not wait.
  void LeaveFailure(const std::string& folder, const std::string& reason) const;
  absl::Status WriteFile(const CheckpointRequest& request, const std::string& folder);
  absl::Status Lead(const CheckpointRequest& request, const absl::Status& own_part,
                    WriteResult& result);
  // Waits for every file's description or failure but that of stem `skip`, whose failure is known.
  absl::StatusOr<std::vector<ManifestFile>> Gather(const std::string& folder,
                                                   const std::string& skip, int64_t deadline_us);
  JobDirectory PlaceOf(const CheckpointRequest& request) const;

  WriterOptions options_;
  absl::Status leftovers_;  // Whether they are gone; nothing is written beside them.
};

}  // namespace fedshard::checkpoint
