// One file of a checkpoint, read chunk by chunk, each checked against the manifest before a byte of
// it is used. Files of one reader share a cache of one chunk. One thread. Private to this room.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

namespace fedshard::checkpoint {

class ChunkedFile;

struct ChunkCache {
  const ChunkedFile* file = nullptr;  // Null: empty.
  int64_t chunk = 0;
  std::vector<char> bytes;
  int64_t bytes_read = 0;  // In all.
};

class ChunkedFile {
 public:
  // `path`: of the file; `file` and `cache` must outlive this. NOT_FOUND, DATA_LOSS.
  static absl::Status CheckSize(const std::string& path, const ManifestFile& file);
  // Checks the header (by checksum, and that its tensors are those of the manifest).
  static absl::StatusOr<std::unique_ptr<ChunkedFile>> Open(const std::string& path,
                                                           const ManifestFile& file,
                                                           ChunkCache& cache);
  ~ChunkedFile() {
    if (cache_.file == this) cache_.file = nullptr;
  }
  ChunkedFile(const ChunkedFile&) = delete;
  ChunkedFile& operator=(const ChunkedFile&) = delete;

  // Elements [begin, begin + count) of a tensor of the manifest (by index), as fp32.
  absl::Status ReadFloats(size_t tensor, int64_t begin, int64_t count, float* out) const;
  // Every chunk.
  absl::Status Verify() const;

 private:
  ChunkedFile(const ManifestFile& file, ChunkCache& cache) : file_(file), cache_(cache) {}
  absl::Status CheckHeader();
  absl::Status LoadChunk(int64_t chunk) const;
  absl::Status ReadBytes(int64_t begin, int64_t count, char* out) const;

  const ManifestFile& file_;
  ChunkCache& cache_;
  std::unique_ptr<SafetensorsReader> reader_;
  std::vector<const StoredTensor*> tensors_;  // As file_.tensors.
};

}  // namespace fedshard::checkpoint
