// Texts that protobuf would refuse become texts that it takes, and good ones stay as they are.
#include "common/utf8.h"

#include <gtest/gtest.h>

namespace fedshard {
namespace {

TEST(ValidUtf8, KeepsWhatIsValid) {
  for (const std::string text :
       {"", "plain", "gr\xC3\xBC\xC3\x9F", "\xE2\x82\xAC", "\xF0\x9F\x8C\x8D!"}) {
    EXPECT_EQ(ValidUtf8(text), text);
  }
}

TEST(ValidUtf8, ReplacesWhatIsNot) {
  EXPECT_EQ(ValidUtf8("a\xFF\xFE z"), "a?? z");
  EXPECT_EQ(ValidUtf8("cut \xE2\x82"), "cut ??");
  EXPECT_EQ(ValidUtf8("\x80 \xFF \xC3("), "? ? ?(");
  EXPECT_EQ(ValidUtf8("\x80lone"), "?lone");
  EXPECT_EQ(ValidUtf8("\xC0\xAF"), "??") << "overlong";
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), "???") << "a surrogate";
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80"), "????") << "beyond the last code point";
}

}  // namespace
}  // namespace fedshard
