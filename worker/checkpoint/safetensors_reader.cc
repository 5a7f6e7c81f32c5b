#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/safetensors.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
// Far above the header of any model, and little enough to parse.
constexpr uint64_t kMaxHeaderBytes = 16 << 20;
constexpr int64_t kConvertElements = 64 << 10;

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

std::string Quoted(const std::string& name) {
  return absl::StrCat("tensor \"", name.substr(0, 200), "\"");
}

// The header as an object; a name that is given twice is an error, since readers would disagree.
absl::StatusOr<json> ParseHeader(const std::string& path, const std::string& text) {
  std::set<std::string> names;
  std::string repeated;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.insert(name).second) repeated = name;
    }
    return true;
  };
  json header = json::parse(text, watch, /*allow_exceptions=*/false);
  if (!header.is_object()) return Damaged(path, "the header is not a JSON object");
  if (!repeated.empty()) return Damaged(path, absl::StrCat(Quoted(repeated), " is there twice"));
  return header;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const std::string& path,
                                                                 const json& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) return Damaged(path, "__metadata__ is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) return Damaged(path, "__metadata__ has a value that is no string");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// Not negative and at most `limit`.
bool IsCount(const json& value, int64_t limit) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(limit);
}

// `data`: where the data begins in the file, `data_bytes`: how much of it there is.
absl::StatusOr<StoredTensor> ParseTensor(const std::string& path, const std::string& name,
                                         const json& value, int64_t data, int64_t data_bytes) {
  const auto bad = [&](const std::string& what) {
    return Damaged(path, absl::StrCat(Quoted(name), ": ", what));
  };
  if (!value.is_object()) return bad("is not described by an object");
  const auto dtype = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string()) return bad("dtype is missing or no string");
  if (shape == value.end() || !shape->is_array()) return bad("shape is missing or no list");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !IsCount((*offsets)[0], data_bytes) || !IsCount((*offsets)[1], data_bytes)) {
    return bad(absl::StrCat("data_offsets are not two offsets within the file's ", data_bytes,
                            " bytes of data: truncated or garbled"));
  }
  const auto known = ParseDType(dtype->get<std::string>());
  if (!known) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", Quoted(name), ": dtype ",
                                                   dtype->get<std::string>().substr(0, 20),
                                                   " is not supported, only F32, F16 and BF16"));
  }
  StoredTensor tensor{name, *known, {}, 0, 0};
  int64_t bytes = BytesOf(*known);
  for (const json& extent : *shape) {
    if (!IsCount(extent, INT64_MAX)) return bad("shape has an extent that is no size");
    tensor.shape.push_back(extent.get<int64_t>());
    if (__builtin_mul_overflow(bytes, tensor.shape.back(), &bytes)) return bad("is too large");
  }
  const auto begin = (*offsets)[0].get<int64_t>();
  tensor.offset = data + begin;
  tensor.bytes = (*offsets)[1].get<int64_t>() - begin;
  if (tensor.bytes != bytes) {
    return bad(absl::StrCat("its shape takes ", bytes, " bytes, but its data_offsets hold ",
                            tensor.bytes));
  }
  return tensor;
}

// Every byte of the data belongs to exactly one tensor.
absl::Status CheckCover(const std::string& path, const std::map<std::string, StoredTensor>& tensors,
                        int64_t data, int64_t file_bytes) {
  std::vector<const StoredTensor*> by_offset;
  for (const auto& [name, tensor] : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::tie(a->offset, a->bytes) < std::tie(b->offset, b->bytes);
  });
  int64_t at = data;
  for (const StoredTensor* tensor : by_offset) {
    if (tensor->offset != at) {
      return Damaged(path, absl::StrCat(Quoted(tensor->name), tensor->offset < at
                                                                  ? " overlaps the one before it"
                                                                  : " follows a gap"));
    }
    at += tensor->bytes;
  }
  if (at == file_bytes) return absl::OkStatus();
  return Damaged(path, absl::StrCat("has ", file_bytes - at, " bytes after its last tensor"));
}

absl::StatusOr<int64_t> RegularFileSize(const std::string& path, int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) {
    return absl::InternalError(absl::StrCat(path, ": ", strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  return status.st_size;
}

}  // namespace

int64_t StoredTensor::elements() const {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader);
  reader->path_ = path;
  // Not blocking: a pipe without a writer would hold the caller for ever.
  reader->fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (reader->fd_ < 0) {
    const std::string message = absl::StrCat(path, ": ", strerror(errno));
    return errno == ENOENT || errno == ENOTDIR ? absl::NotFoundError(message)
                                               : absl::InternalError(message);
  }
  ASSIGN_OR_RETURN(reader->file_bytes_, RegularFileSize(path, reader->fd_));
  if (reader->file_bytes_ < kLengthBytes) return Damaged(path, "is too short for a header");
  uint64_t length = 0;
  RETURN_IF_ERROR(reader->ReadBytes(0, kLengthBytes, &length));
  if (length > kMaxHeaderBytes) {
    return Damaged(path, absl::StrCat("a header of ", length, " bytes: not a safetensors file"));
  }
  const int64_t data = kLengthBytes + static_cast<int64_t>(length);
  if (data > reader->file_bytes_) {
    return Damaged(path, absl::StrCat("has ", reader->file_bytes_, " bytes, less than its header"));
  }
  std::string text(length, '\0');
  RETURN_IF_ERROR(reader->ReadBytes(kLengthBytes, static_cast<int64_t>(length), text.data()));
  ASSIGN_OR_RETURN(const json header, ParseHeader(path, text));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      ASSIGN_OR_RETURN(reader->metadata_, ParseMetadata(path, value));
    } else {
      ASSIGN_OR_RETURN(reader->tensors_[name],
                       ParseTensor(path, name, value, data, reader->file_bytes_ - data));
    }
  }
  RETURN_IF_ERROR(CheckCover(path, reader->tensors_, data, reader->file_bytes_));
  return reader;
}

SafetensorsReader::~SafetensorsReader() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SafetensorsReader::ReadBytes(int64_t begin, int64_t count, void* out) const {
  if (begin < 0 || count < 0 || count > file_bytes_ - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", count, " bytes from ", begin, " on are not all in the file"));
  }
  auto* to = static_cast<char*>(out);
  for (int64_t done = 0; done < count;) {
    const ssize_t got = pread(fd_, to + done, static_cast<size_t>(count - done), begin + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::InternalError(absl::StrCat(path_, ": ", strerror(errno)));
    if (got == 0) return Damaged(path_, "became shorter while it was read");
    done += got;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::ReadFloats(const std::string& name, int64_t begin, int64_t count,
                                           float* out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": has no ", Quoted(name)));
  }
  const StoredTensor& tensor = found->second;
  if (begin < 0 || count < 0 || count > tensor.elements() - begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": ", Quoted(name), ": ", count, " elements from ", begin, " on are not all in it"));
  }
  const int64_t width = BytesOf(tensor.dtype);
  if (tensor.dtype == DType::kF32) {
    return ReadBytes(tensor.offset + begin * width, count * width, out);
  }
  std::vector<char> buffer(static_cast<size_t>(std::min(count, kConvertElements) * width));
  for (int64_t done = 0; done < count;) {
    const int64_t now = std::min(count - done, kConvertElements);
    RETURN_IF_ERROR(ReadBytes(tensor.offset + (begin + done) * width, now * width, buffer.data()));
    ToFloats(tensor.dtype, buffer.data(), now, out + done);
    done += now;
  }
  return absl::OkStatus();
}

}  // namespace fedshard::checkpoint
