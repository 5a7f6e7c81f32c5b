// Ids are what DNS labels are, and incarnations never repeat.
#include "common/ids.h"

#include <gtest/gtest.h>

#include <set>

#include "common/testing/status_matchers.h"

namespace fedshard {
namespace {

TEST(Ids, AcceptsLabels) {
  for (const char* id : {"a", "shakespeare-fl-hsdp", "node-0", "x9"}) {
    EXPECT_THAT(ValidateId("job id", id), testing::IsOk());
  }
  EXPECT_THAT(ValidateId("job id", std::string(63, 'a')), testing::IsOk());
}

TEST(Ids, RefusesOthersByRule) {
  for (const std::string id : {"", "A", "0a", "-a", "a-", "a_b", "a/b", "a b", "\xc3\xa4"}) {
    EXPECT_THAT(ValidateId("job id", id), testing::StatusIs(absl::StatusCode::kInvalidArgument))
        << id;
  }
  EXPECT_THAT(ValidateId("job id", std::string(64, 'a')),
              testing::StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Ids, IncarnationsDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(NewIncarnation());
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(seen.begin()->size(), 32u);
}

}  // namespace
}  // namespace fedshard
