// Writes one file of a checkpoint: flat tensors in safetensors form, with the checksum of each
// chunk taken from the bytes on their way to the disk, so that what the disk garbles is noticed.
// Owned and used by one thread. Private to this room.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

namespace fedshard::checkpoint {

class StateFileWriter {
 public:
  // Creates `folder`/`name` under a temporary name and writes its header.
  static absl::StatusOr<std::unique_ptr<StateFileWriter>> Create(const std::string& folder,
                                                                 const std::string& name,
                                                                 int64_t chunk_bytes,
                                                                 std::vector<FlatTensor> tensors);

  // The next bytes, in the order of the tensors; a call stays inside one tensor.
  absl::Status Write(const void* bytes, int64_t count);
  // Flushes to disk, gives the file its name and returns its description.
  absl::StatusOr<ManifestFile> Finish();

 private:
  StateFileWriter() = default;
  void Absorb(const char* bytes, int64_t count);

  std::string path_;
  std::string temporary_;
  std::unique_ptr<SafetensorsWriter> writer_;
  ManifestFile file_;
  std::vector<char> chunk_;  // What the current chunk has so far.
};

}  // namespace fedshard::checkpoint
