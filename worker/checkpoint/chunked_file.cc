#include "worker/checkpoint/chunked_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/collective/hash.h"

namespace fedshard::checkpoint {
namespace {

constexpr int64_t kConvertElements = 16 << 10;

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

}  // namespace

absl::Status ChunkedFile::CheckSize(const std::string& path, const ManifestFile& file) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return Damaged(path, "is missing");
    return SystemError(path, "stat", errno);
  }
  if (!S_ISREG(status.st_mode)) return Damaged(path, "is not a regular file");
  if (status.st_size == file.bytes) return absl::OkStatus();
  return Damaged(path, absl::StrCat(status.st_size < file.bytes ? "is truncated" : "has grown",
                                    ": ", status.st_size, " bytes, not ", file.bytes));
}

absl::StatusOr<std::unique_ptr<ChunkedFile>> ChunkedFile::Open(const std::string& path,
                                                               const ManifestFile& file,
                                                               ChunkCache& cache) {
  RETURN_IF_ERROR(CheckSize(path, file));
  std::unique_ptr<ChunkedFile> opened(new ChunkedFile(file, cache));
  ASSIGN_OR_RETURN(opened->reader_, SafetensorsReader::Open(path));
  RETURN_IF_ERROR(opened->CheckHeader());
  return opened;
}

absl::Status ChunkedFile::CheckHeader() {
  int64_t data = file_.bytes;
  for (const auto& [name, tensor] : reader_->tensors()) data = std::min(data, tensor.offset);
  // The header says where the tensors lie, so it counts only after its checksum.
  for (int64_t chunk = 0; chunk * file_.chunk_bytes < data; ++chunk) {
    RETURN_IF_ERROR(LoadChunk(chunk));
  }
  for (const FlatTensor& tensor : file_.tensors) {
    const auto found = reader_->tensors().find(tensor.name);
    if (found == reader_->tensors().end()) {
      return Damaged(reader_->path(), absl::StrCat("has no tensor \"", tensor.name, "\""));
    }
    const StoredTensor& stored = found->second;
    if (DTypeName(stored.dtype) != tensor.dtype || stored.elements() != tensor.elements) {
      return Damaged(reader_->path(),
                     absl::StrCat("tensor \"", tensor.name, "\" has ", stored.elements(), " ",
                                  DTypeName(stored.dtype), ", the manifest says ", tensor.elements,
                                  " ", tensor.dtype));
    }
    tensors_.push_back(&stored);
  }
  return absl::OkStatus();
}

absl::Status ChunkedFile::LoadChunk(int64_t chunk) const {
  if (cache_.file == this && cache_.chunk == chunk) return absl::OkStatus();
  const int64_t begin = chunk * file_.chunk_bytes;
  const int64_t count = std::min(file_.chunk_bytes, file_.bytes - begin);
  cache_.file = nullptr;
  cache_.bytes.resize(static_cast<size_t>(count));
  RETURN_IF_ERROR(reader_->ReadBytes(begin, count, cache_.bytes.data()));
  cache_.bytes_read += count;
  const uint64_t checksum = collective::Fingerprint64(cache_.bytes.data(), cache_.bytes.size());
  if (checksum != file_.chunk_checksums[static_cast<size_t>(chunk)]) {
    return Damaged(reader_->path(), absl::StrCat("bytes [", begin, ", ", begin + count,
                                                 ") do not match their checksum"));
  }
  cache_.file = this;
  cache_.chunk = chunk;
  return absl::OkStatus();
}

absl::Status ChunkedFile::ReadBytes(int64_t begin, int64_t count, char* out) const {
  while (count > 0) {
    const int64_t chunk = begin / file_.chunk_bytes;
    RETURN_IF_ERROR(LoadChunk(chunk));
    const int64_t at = begin - chunk * file_.chunk_bytes;
    const int64_t now = std::min(count, static_cast<int64_t>(cache_.bytes.size()) - at);
    memcpy(out, cache_.bytes.data() + at, static_cast<size_t>(now));
    begin += now;
    out += now;
    count -= now;
  }
  return absl::OkStatus();
}

absl::Status ChunkedFile::ReadFloats(size_t tensor, int64_t begin, int64_t count,
                                     float* out) const {
  const StoredTensor& stored = *tensors_[tensor];
  const int64_t width = BytesOf(stored.dtype);
  if (stored.dtype == DType::kF32) {
    return ReadBytes(stored.offset + begin * width, count * width, reinterpret_cast<char*>(out));
  }
  std::vector<char> buffer(static_cast<size_t>(std::min(count, kConvertElements) * width));
  for (int64_t done = 0; done < count;) {
    const int64_t now = std::min(count - done, kConvertElements);
    RETURN_IF_ERROR(ReadBytes(stored.offset + (begin + done) * width, now * width, buffer.data()));
    ToFloats(stored.dtype, buffer.data(), now, out + done);
    done += now;
  }
  return absl::OkStatus();
}

absl::Status ChunkedFile::Verify() const {
  for (size_t chunk = 0; chunk < file_.chunk_checksums.size(); ++chunk) {
    RETURN_IF_ERROR(LoadChunk(static_cast<int64_t>(chunk)));
  }
  return absl::OkStatus();
}

}  // namespace fedshard::checkpoint
