// Texts on their way into protobuf strings, which receivers refuse when they are not UTF-8. Pure.
#pragma once

#include <string>

namespace fedshard {

// Bytes that are no complete UTF-8 character, as at the end of a text cut to a length, become '?'.
std::string ValidUtf8(std::string text);

}  // namespace fedshard
