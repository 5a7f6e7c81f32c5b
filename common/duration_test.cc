// Durations in all units round-trip; everything else is refused.
#include "common/duration.h"

#include <gtest/gtest.h>

#include "common/testing/status_matchers.h"

namespace fedshard {
namespace {

TEST(Duration, ParsesEveryUnit) {
  EXPECT_EQ(*ParseDuration("250us"), 250);
  EXPECT_EQ(*ParseDuration("500ms"), 500'000);
  EXPECT_EQ(*ParseDuration("10s"), 10'000'000);
  EXPECT_EQ(*ParseDuration("1.5s"), 1'500'000);
  EXPECT_EQ(*ParseDuration("2m"), 120'000'000);
  EXPECT_EQ(*ParseDuration("1h"), 3'600'000'000);
  EXPECT_EQ(*ParseDuration("0s"), 0);
}

TEST(Duration, RefusesEverythingElse) {
  for (const char* text : {"", "10", "s", "-1s", "1 s", "1d", "nans", "infs", "1s2", "1e300h"}) {
    EXPECT_THAT(ParseDuration(text), testing::StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(Duration, FormatIsParsedBack) {
  for (const int64_t us : {0L, 1L, 999L, 1'500L, 2'000'000L, 90'000'000L, 7'200'000'000L}) {
    EXPECT_EQ(*ParseDuration(FormatDuration(us)), us) << FormatDuration(us);
  }
  EXPECT_EQ(FormatDuration(2'000'000), "2s");
}

}  // namespace
}  // namespace fedshard
