// The safetensors file format: named tensors behind a JSON header. Readers fetch only the byte
// ranges that are asked for; writers write front to back. Without LibTorch.
// Format: https://github.com/huggingface/safetensors (8 bytes header length, little endian; JSON;
// data). Files are untrusted input: every size is checked before it is used.
//
// Errors: NOT_FOUND (no such file or tensor), DATA_LOSS (truncated or garbled; names file and what
// is wrong), INVALID_ARGUMENT (an element type other than these, no regular file, programming
// errors; names file and tensor), INTERNAL (I/O), RESOURCE_EXHAUSTED (disk full).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/dtype.h"

namespace fedshard::checkpoint {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // Bytes from the start of the file.
  int64_t bytes = 0;

  int64_t elements() const;
};

// Immutable after Open; reads may come from any thread.
class SafetensorsReader {
 public:
  // Reads the header and checks that its tensors lie inside the file, without gaps or overlaps.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const std::string& path);
  ~SafetensorsReader();

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Elements [begin, begin + count) of the tensor, as fp32.
  absl::Status ReadFloats(const std::string& name, int64_t begin, int64_t count, float* out) const;
  // Bytes [begin, begin + count) of the file.
  absl::Status ReadBytes(int64_t begin, int64_t count, void* out) const;

 private:
  SafetensorsReader() = default;

  std::string path_;
  int fd_ = -1;
  int64_t file_bytes_ = 0;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// One file, written once. Not thread-safe.
class SafetensorsWriter {
 public:
  // Creates `path`, or empties it, and writes the header; `tensors` in the order of their data
  // (offset and bytes are filled in here).
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<StoredTensor> tensors,
      const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();

  // The next `count` elements, converted to the dtype of their tensor; a call stays inside one
  // tensor.
  absl::Status WriteFloats(const float* values, int64_t count);
  // The next bytes as they are.
  absl::Status WriteBytes(const void* bytes, int64_t count);
  // All tensors are written: flushes to disk and closes. FAILED_PRECONDITION when some are missing.
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;
  // The first tensor that is not complete; null at the end.
  const StoredTensor* Current();
  absl::Status TooMuch() const;

  std::string path_;
  int fd_ = -1;
  std::vector<StoredTensor> tensors_;
  size_t current_ = 0;
  int64_t written_ = 0;  // Bytes of the current tensor.
};

}  // namespace fedshard::checkpoint
