#include "worker/checkpoint/state_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/collective/hash.h"

namespace fedshard::checkpoint {
namespace {

constexpr int64_t kMaxHeaderBytes = int64_t{1} << 30;

}  // namespace

absl::StatusOr<std::unique_ptr<StateFileWriter>> StateFileWriter::Create(
    const std::string& folder, const std::string& name, int64_t chunk_bytes,
    std::vector<FlatTensor> tensors) {
  std::unique_ptr<StateFileWriter> state(new StateFileWriter);
  state->path_ = absl::StrCat(folder, "/", name);
  state->temporary_ = state->path_ + ".tmp";
  state->file_.name = name;
  state->file_.chunk_bytes = chunk_bytes;
  state->chunk_.reserve(static_cast<size_t>(chunk_bytes));
  std::vector<StoredTensor> stored;
  for (const FlatTensor& tensor : tensors) {
    const auto dtype = ParseDType(tensor.dtype);
    if (!dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(state->path_, ": tensor ", tensor.name, ": dtype ", tensor.dtype));
    }
    stored.push_back({tensor.name, *dtype, {tensor.elements}, 0, 0});
  }
  state->file_.tensors = std::move(tensors);
  ASSIGN_OR_RETURN(state->writer_,
                   SafetensorsWriter::Create(state->temporary_, stored, {{"format", "fedshard"}}));
  // The header belongs to the first chunks: so far it is all that is in the file.
  ASSIGN_OR_RETURN(const std::string header, ReadWholeFile(state->temporary_, kMaxHeaderBytes));
  state->Absorb(header.data(), static_cast<int64_t>(header.size()));
  return state;
}

void StateFileWriter::Absorb(const char* bytes, int64_t count) {
  file_.bytes += count;
  while (count > 0) {
    const int64_t room = file_.chunk_bytes - static_cast<int64_t>(chunk_.size());
    const int64_t now = std::min(room, count);
    chunk_.insert(chunk_.end(), bytes, bytes + now);
    bytes += now;
    count -= now;
    if (static_cast<int64_t>(chunk_.size()) < file_.chunk_bytes) return;
    file_.chunk_checksums.push_back(collective::Fingerprint64(chunk_.data(), chunk_.size()));
    chunk_.clear();
  }
}

absl::Status StateFileWriter::Write(const void* bytes, int64_t count) {
  RETURN_IF_ERROR(writer_->WriteBytes(bytes, count));
  Absorb(static_cast<const char*>(bytes), count);
  return absl::OkStatus();
}

absl::StatusOr<ManifestFile> StateFileWriter::Finish() {
  RETURN_IF_ERROR(writer_->Finish());
  if (!chunk_.empty()) {
    file_.chunk_checksums.push_back(collective::Fingerprint64(chunk_.data(), chunk_.size()));
  }
  RETURN_IF_ERROR(Rename(temporary_, path_));
  return std::move(file_);
}

}  // namespace fedshard::checkpoint
