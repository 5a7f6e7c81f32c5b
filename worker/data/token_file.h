// A memory-mapped token file: raw little-endian uint16 or uint32 in NAME.bin, described by
// NAME.json:
// {"dtype": "uint16", "count": 1115394, "vocabulary": 256, "tokenizer": "bytes", "checksum":
// "crc32:1a2b3c4d"}. Immutable and thread-safe after opening.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace fedshard::data {

struct TokenFileInfo {
  int32_t bytes_per_token = 2;
  int64_t count = 0;
  int64_t vocabulary = 0;
  std::string tokenizer;
  std::string checksum;
};

class TokenFile {
 public:
  // Errors name the file and the sidecar's field: NOT_FOUND, INVALID_ARGUMENT (sidecar), DATA_LOSS
  // (size or checksum does not match; a token beyond the vocabulary). `verify` reads the whole
  // file.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path, bool verify);
  ~TokenFile();

  // Whether a model with `vocab_size` can train on windows of `sample_tokens` tokens of it.
  // INVALID_ARGUMENT names the file and the number that does not fit.
  absl::Status CheckFits(int64_t vocab_size, int64_t sample_tokens) const;

  const TokenFileInfo& info() const { return info_; }
  // Tokens [first, first + count) into `out`.
  void Read(int64_t first, int64_t count, int64_t* out) const;

 private:
  TokenFile() = default;
  std::string path_;
  TokenFileInfo info_;
  const unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fedshard::data
