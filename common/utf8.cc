#include "common/utf8.h"

#include <algorithm>
#include <cstddef>

namespace fedshard {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// By the first byte; 0 when no character begins with it.
size_t CharacterLength(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

// Overlong forms, surrogates and code points beyond the last: their second byte gives them away.
bool IsForbidden(unsigned char first, unsigned char second) {
  return (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
         (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
}

}  // namespace

std::string ValidUtf8(std::string text) {
  for (size_t begin = 0; begin < text.size();) {
    const auto first = static_cast<unsigned char>(text[begin]);
    const size_t length = CharacterLength(first);
    size_t end = begin + 1;
    while (end < text.size() && end < begin + length && IsContinuation(text[end])) ++end;
    const bool whole = length != 0 && end == begin + length;
    if (!whole || (length > 2 && IsForbidden(first, static_cast<unsigned char>(text[begin + 1])))) {
      std::fill(text.begin() + begin, text.begin() + end, '?');
    }
    begin = end;
  }
  return text;
}

}  // namespace fedshard
