// Between text and tokens: bytes, or a Hugging Face tokenizer by way of fedshard-tokenize. Owned by
// the command; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fedshard::inference {

class TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual absl::StatusOr<std::vector<int64_t>> Encode(const std::string& text) = 0;
  virtual absl::StatusOr<std::string> Decode(const std::vector<int64_t>& tokens) = 0;
  // Whether the text of tokens is the texts of its parts, so that it can be shown as it comes.
  virtual bool by_parts() const = 0;
};

// Token = byte.
std::unique_ptr<TextCodec> MakeByteCodec();

// The tokenizer.json `file`; each call runs the tool once, with `folder` for what is exchanged.
// `special_tokens`: the tokenizer adds those that it puts around a text, like <|begin_of_text|>.
std::unique_ptr<TextCodec> MakeTokenizerCodec(const std::string& file, bool special_tokens,
                                              const std::string& folder);

}  // namespace fedshard::inference
