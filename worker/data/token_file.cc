#include "worker/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace fedshard::data {
namespace {

using nlohmann::json;

absl::Status BadSidecar(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<int64_t> PositiveInteger(const json& sidecar, const std::string& path,
                                        const char* field) {
  const auto found = sidecar.find(field);
  if (found == sidecar.end()) return BadSidecar(path, absl::StrCat(field, ": is missing"));
  if (!found->is_number_unsigned() || found->get<uint64_t>() < 1 ||
      found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 8)) {
    return BadSidecar(path,
                      absl::StrCat(field, ": must be a positive integer, not ", found->dump()));
  }
  return found->get<int64_t>();
}

absl::StatusOr<std::string> Text(const json& sidecar, const std::string& path, const char* field) {
  const auto found = sidecar.find(field);
  if (found == sidecar.end() || !found->is_string()) {
    return BadSidecar(path, absl::StrCat(field, ": must be a string"));
  }
  return found->get<std::string>();
}

// "…/train.bin" -> "…/train.json".
absl::StatusOr<std::string> SidecarPath(const std::string& path) {
  if (!absl::EndsWith(path, ".bin")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a token file's name ends in .bin"));
  }
  return path.substr(0, path.size() - 4) + ".json";
}

absl::StatusOr<TokenFileInfo> ReadSidecar(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno),
                                            "; tools/prepare writes it beside the token file"));
  }
  const json sidecar = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!sidecar.is_object()) return BadSidecar(path, "is not a JSON object");
  TokenFileInfo info;
  ASSIGN_OR_RETURN(const std::string dtype, Text(sidecar, path, "dtype"));
  if (dtype == "uint16") {
    info.bytes_per_token = 2;
  } else if (dtype == "uint32") {
    info.bytes_per_token = 4;
  } else {
    return BadSidecar(path, absl::StrCat("dtype: must be uint16 or uint32, not ", dtype));
  }
  ASSIGN_OR_RETURN(info.count, PositiveInteger(sidecar, path, "count"));
  ASSIGN_OR_RETURN(info.vocabulary, PositiveInteger(sidecar, path, "vocabulary"));
  ASSIGN_OR_RETURN(info.tokenizer, Text(sidecar, path, "tokenizer"));
  ASSIGN_OR_RETURN(info.checksum, Text(sidecar, path, "checksum"));
  return info;
}

std::string Checksum(const unsigned char* data, size_t bytes) {
  uLong crc = crc32(0, nullptr, 0);
  constexpr size_t kStep = size_t{1} << 30;  // zlib counts in 32 bits.
  for (size_t at = 0; at < bytes; at += kStep) {
    crc = crc32(crc, data + at, static_cast<uInt>(std::min(kStep, bytes - at)));
  }
  char text[32];
  snprintf(text, sizeof text, "crc32:%08lx", crc);
  return text;
}

}  // namespace

TokenFile::~TokenFile() {
  if (data_ != nullptr) munmap(const_cast<unsigned char*>(data_), bytes_);
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path, bool verify) {
  std::unique_ptr<TokenFile> file(new TokenFile);
  file->path_ = path;
  ASSIGN_OR_RETURN(const std::string sidecar, SidecarPath(path));
  // Not blocking: a pipe without a writer would hold the caller for ever.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  struct stat status = {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  file->bytes_ = static_cast<size_t>(status.st_size);
  void* data =
      file->bytes_ == 0 ? MAP_FAILED : mmap(nullptr, file->bytes_, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (data != MAP_FAILED) file->data_ = static_cast<const unsigned char*>(data);

  ASSIGN_OR_RETURN(file->info_, ReadSidecar(sidecar));
  const TokenFileInfo& info = file->info_;
  const int64_t expected = info.count * info.bytes_per_token;
  if (static_cast<int64_t>(file->bytes_) != expected) {
    return absl::DataLossError(absl::StrCat(path, ": has ", file->bytes_, " bytes, but ", sidecar,
                                            " says ", info.count, " tokens = ", expected,
                                            " bytes: truncated or written by something else"));
  }
  if (data == MAP_FAILED)
    return absl::InternalError(absl::StrCat(path, ": mmap: ", strerror(error)));
  if (!verify) return file;

  const std::string checksum = Checksum(file->data_, file->bytes_);
  if (checksum != info.checksum) {
    return absl::DataLossError(absl::StrCat(path, ": checksum is ", checksum, ", but ", sidecar,
                                            " says ", info.checksum, ": the file is damaged"));
  }
  for (int64_t i = 0; i < info.count; ++i) {
    int64_t token;
    file->Read(i, 1, &token);
    if (token >= info.vocabulary) {
      return absl::DataLossError(absl::StrCat(path, ": token ", i, " is ", token,
                                              ", beyond the vocabulary of ", info.vocabulary));
    }
  }
  return file;
}

absl::Status TokenFile::CheckFits(int64_t vocab_size, int64_t sample_tokens) const {
  if (info_.vocabulary > vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": vocabulary of ", info_.vocabulary,
                     " is larger than the model's vocab_size = ", vocab_size));
  }
  if (info_.count < sample_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": has ", info_.count, " tokens, but one sample takes ", sample_tokens));
  }
  return absl::OkStatus();
}

void TokenFile::Read(int64_t first, int64_t count, int64_t* out) const {
  const unsigned char* at = data_ + first * info_.bytes_per_token;
  for (int64_t i = 0; i < count; ++i, at += info_.bytes_per_token) {
    if (info_.bytes_per_token == 2) {
      uint16_t token;
      memcpy(&token, at, sizeof token);
      out[i] = token;
    } else {
      uint32_t token;
      memcpy(&token, at, sizeof token);
      out[i] = token;
    }
  }
}

}  // namespace fedshard::data
