#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/safetensors.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kConvertElements = 64 << 10;
constexpr size_t kAlignment = 8;  // Of the data, so that readers may map it.

absl::Status Failed(const std::string& path, const char* what, int error) {
  const std::string message = absl::StrCat(path, ": ", what, ": ", strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

absl::Status WriteAll(const std::string& path, int fd, const void* bytes, int64_t count) {
  const auto* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t put = write(fd, from, static_cast<size_t>(count));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Failed(path, "write", errno);
    from += put;
    count -= put;
  }
  return absl::OkStatus();
}

// Fills in where each tensor lies, relative to the start of the data. Returns the header's text.
absl::StatusOr<std::string> Arrange(const std::string& path, std::vector<StoredTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t at = 0;
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the name \"", tensor.name, "\" is taken"));
    }
    tensor.offset = at;
    tensor.bytes = tensor.elements() * BytesOf(tensor.dtype);
    at += tensor.bytes;
    header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.offset, at}}};
  }
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<StoredTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  writer->path_ = path;
  ASSIGN_OR_RETURN(const std::string header, Arrange(path, tensors, metadata));
  writer->fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (writer->fd_ < 0) return Failed(path, "create", errno);
  const uint64_t length = header.size();
  RETURN_IF_ERROR(WriteAll(path, writer->fd_, &length, sizeof length));
  RETURN_IF_ERROR(WriteAll(path, writer->fd_, header.data(), static_cast<int64_t>(length)));
  for (StoredTensor& tensor : tensors) {
    tensor.offset += static_cast<int64_t>(sizeof length + length);
  }
  writer->tensors_ = std::move(tensors);
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
}

const StoredTensor* SafetensorsWriter::Current() {
  while (current_ < tensors_.size() && written_ == tensors_[current_].bytes) {
    ++current_;
    written_ = 0;
  }
  return current_ < tensors_.size() ? &tensors_[current_] : nullptr;
}

absl::Status SafetensorsWriter::TooMuch() const {
  return absl::InvalidArgumentError(absl::StrCat(
      path_, ": more data than ",
      current_ < tensors_.size() ? absl::StrCat("tensor \"", tensors_[current_].name, "\" has")
                                 : "its tensors have"));
}

absl::Status SafetensorsWriter::WriteBytes(const void* bytes, int64_t count) {
  if (count == 0) return absl::OkStatus();
  const StoredTensor* tensor = Current();
  if (tensor == nullptr || count > tensor->bytes - written_) return TooMuch();
  RETURN_IF_ERROR(WriteAll(path_, fd_, bytes, count));
  written_ += count;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::WriteFloats(const float* values, int64_t count) {
  if (count == 0) return absl::OkStatus();
  const StoredTensor* tensor = Current();
  if (tensor == nullptr) return TooMuch();
  const DType dtype = tensor->dtype;
  const int64_t width = BytesOf(dtype);
  if (count > (tensor->bytes - written_) / width) return TooMuch();
  if (dtype == DType::kF32) return WriteBytes(values, count * width);
  std::vector<char> buffer(static_cast<size_t>(std::min(count, kConvertElements) * width));
  for (int64_t done = 0; done < count;) {
    const int64_t now = std::min(count - done, kConvertElements);
    FromFloats(dtype, values + done, now, buffer.data());
    RETURN_IF_ERROR(WriteBytes(buffer.data(), now * width));
    done += now;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (const StoredTensor* tensor = Current(); tensor != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": tensor \"", tensor->name,
                                                      "\" is not complete: ", written_, " of ",
                                                      tensor->bytes, " bytes"));
  }
  if (fsync(fd_) != 0) return Failed(path_, "fsync", errno);
  const int closed = close(fd_);
  fd_ = -1;
  return closed == 0 ? absl::OkStatus() : Failed(path_, "close", errno);
}

}  // namespace fedshard::checkpoint
