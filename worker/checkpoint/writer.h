// Writes one rank's part of checkpoints, in the background. Protocol between ranks is the shared
// directory alone, so that no collective and no training thread waits for a disk:
//
//  1. every rank that stores something writes FILE into DIRECTORY/NAME.partial-ATTEMPT, by fsync
//     and rename, then its description FILE.json in the same way (or FILE.failed with the error):
//     one writer per file;
//  2. the leader waits for all descriptions, with a deadline, writes manifest.json the same way,
//     renames the folder to DIRECTORY/NAME, fsyncs DIRECTORY, and deletes what `keep` no longer
//     covers. When a part is missing, it removes the whole folder.
//
// The leader's constructor removes what former lives left half-done: it runs before any rank of
// this life starts a checkpoint (they are ordered when all are connected). A checkpoint of this job
// that has the same step is replaced in one step. Each job needs a directory of its own.
//
// Owned by the training thread; Start() copies the state and returns; a thread of its own writes.
// Trouble with the disk never throws and never leaves a folder that looks complete: it is reported.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/checkpoint/manifest.h"

namespace fedshard::checkpoint {

struct WriterOptions {
  std::string directory;
  int64_t keep = 3;  // The newest complete ones of this job; 0 = all.
  // The same on all ranks and different in each life of a job: letters, digits, "-" and "_".
  std::string attempt;
  bool leader = false;                 // Writes the manifest.
  std::string file_stem;               // "group-0-shard-1"; empty = this rank stores nothing.
  std::vector<std::string> all_stems;  // Of every rank that stores something.
  int64_t chunk_bytes = 4 << 20;
  int64_t deadline_ms = 300'000;  // Of the leader's wait for the others, from its Start on.
  // How long after its Start a checkpoint may hold up the next one, before that is skipped.
  int64_t hold_up_ms = 10'000;
};

// A flat tensor to store: host memory that is copied by Start().
struct TensorToStore {
  FlatTensor description;  // `elements` and `dtype` say how much lies at `data`.
  const void* data = nullptr;
};

struct WriteResult {
  int64_t step = 0;
  std::string path;    // Of the complete checkpoint.
  int64_t bytes = 0;   // Of all ranks' files.
  double seconds = 0;  // From Start to the manifest.
  std::string error;   // Empty = complete. Else names the path and the system's error.
};

class CheckpointWriter {
 public:
  // `done` is called from the writer's thread: on the leader with the outcome of each checkpoint,
  // on other ranks only with errors of their own part.
  CheckpointWriter(WriterOptions options, std::function<void(const WriteResult&)> done);
  // Finishes what was started.
  ~CheckpointWriter();

  // Copies the tensors and begins to write. Waits for the former checkpoint first, so that at most
  // one copy exists (it is kept for the next); but when that one takes longer than `hold_up_ms`,
  // this one is skipped, on all ranks, and training goes on. `manifest`: everything but the files;
  // an empty `created` or `version` is filled in.
  void Start(const Manifest& manifest, const std::vector<TensorToStore>& tensors);
  // Until everything started is on disk (or failed).
  void Wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fedshard::checkpoint
