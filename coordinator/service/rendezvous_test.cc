// Proves that rendezvous keys are seen by who waits for them inside their scope and by nobody after
// it is dropped, that waits end at their deadline, and that every bound is kept.
#include "coordinator/service/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/testing/status_matchers.h"
#include "coordinator/service/errors.h"

namespace fedshard::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

using Answer = absl::StatusOr<std::vector<std::string>>;

// Keeps what a wait was answered, and that it was answered once.
struct Wait {
  std::vector<Answer> answers;
  Rendezvous::Callback callback() {
    return [this](Answer answer) { answers.push_back(std::move(answer)); };
  }
};

TEST(RendezvousTest, AnswersAtOnceWhenKeysAreThereAndInTheirOrder) {
  Rendezvous rendezvous{{}};
  rendezvous.OpenScope("job", "g1");
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "1"), IsOk());
  ASSERT_THAT(rendezvous.Set("job", "g1", "b", std::string("\0x", 2)), IsOk());
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "2"), IsOk());
  Wait wait;
  EXPECT_EQ(rendezvous.Get("job", "g1", {"b", "a", "b"}, 100, wait.callback()), 0u);
  ASSERT_EQ(wait.answers.size(), 1u);
  EXPECT_THAT(*wait.answers[0], ElementsAre(std::string("\0x", 2), "2", std::string("\0x", 2)));
}

TEST(RendezvousTest, WakesAWaiterWhenItsLastKeyComes) {
  Rendezvous rendezvous{{}};
  rendezvous.OpenScope("job", "g1");
  Wait wait;
  EXPECT_NE(rendezvous.Get("job", "g1", {"a", "b"}, 100, wait.callback()), 0u);
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "1"), IsOk());
  EXPECT_TRUE(wait.answers.empty());
  ASSERT_THAT(rendezvous.Set("job", "g1", "b", "2"), IsOk());
  ASSERT_EQ(wait.answers.size(), 1u);
  EXPECT_THAT(*wait.answers[0], ElementsAre("1", "2"));
  rendezvous.Expire(1000);
  EXPECT_EQ(wait.answers.size(), 1u);
  EXPECT_EQ(rendezvous.next_deadline_us(), std::nullopt);
}

TEST(RendezvousTest, ScopesOfJobsAndGenerationsAreApart) {
  Rendezvous rendezvous{{}};
  rendezvous.OpenScope("job", "g1");
  rendezvous.OpenScope("job", "g2");
  rendezvous.OpenScope("other", "g1");
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "1"), IsOk());
  Wait same_job, other_job;
  rendezvous.Get("job", "g2", {"a"}, 100, same_job.callback());
  rendezvous.Get("other", "g1", {"a"}, 100, other_job.callback());
  EXPECT_TRUE(same_job.answers.empty());
  EXPECT_TRUE(other_job.answers.empty());
}

TEST(RendezvousTest, ADroppedScopeAbortsItsWaitersAndForgetsItsKeys) {
  Rendezvous rendezvous{{}};
  rendezvous.OpenScope("job", "g1");
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "1"), IsOk());
  Wait waiting, late;
  rendezvous.Get("job", "g1", {"b"}, 100, waiting.callback());
  rendezvous.DropScope("job", "g1");
  ASSERT_EQ(waiting.answers.size(), 1u);
  EXPECT_THAT(waiting.answers[0], StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(ReasonOf(waiting.answers[0].status()), kScopeGone);
  EXPECT_EQ(rendezvous.next_deadline_us(), std::nullopt);

  rendezvous.Get("job", "g1", {"a"}, 100, late.callback());
  ASSERT_EQ(late.answers.size(), 1u);
  EXPECT_EQ(ReasonOf(late.answers[0].status()), kScopeGone);
  EXPECT_EQ(ReasonOf(rendezvous.Set("job", "g1", "a", "1")), kScopeGone);
  EXPECT_EQ(rendezvous.scope_count(), 0u);
}

TEST(RendezvousTest, AWaitEndsAtItsDeadlineNamingTheMissingKey) {
  Rendezvous rendezvous{{}};
  rendezvous.OpenScope("job", "g1");
  Wait early, late;
  rendezvous.Get("job", "g1", {"address/3"}, 100, early.callback());
  rendezvous.Get("job", "g1", {"address/4"}, 200, late.callback());
  EXPECT_EQ(rendezvous.next_deadline_us(), 100);
  rendezvous.Expire(99);
  EXPECT_TRUE(early.answers.empty());
  rendezvous.Expire(100);
  ASSERT_EQ(early.answers.size(), 1u);
  EXPECT_THAT(early.answers[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("address/3")));
  EXPECT_TRUE(late.answers.empty());
}

TEST(RendezvousTest, AForgottenWaiterIsNeverAnswered) {
  Rendezvous rendezvous{{}};
  rendezvous.OpenScope("job", "g1");
  Wait wait;
  const uint64_t id = rendezvous.Get("job", "g1", {"a"}, 100, wait.callback());
  rendezvous.Forget(id);
  rendezvous.Forget(id);
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "1"), IsOk());
  rendezvous.Expire(1000);
  rendezvous.DropScope("job", "g1");
  EXPECT_TRUE(wait.answers.empty());
}

TEST(RendezvousTest, KeepsItsBounds) {
  RendezvousLimits limits;
  limits.key_bytes = 4;
  limits.value_bytes = 8;
  limits.keys_per_scope = 2;
  limits.waiters_per_scope = 1;
  limits.answer_bytes = 10;
  Rendezvous rendezvous(limits);
  rendezvous.OpenScope("job", "g1");
  EXPECT_THAT(rendezvous.Set("job", "g1", "", "1"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(rendezvous.Set("job", "g1", "12345", "1"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(rendezvous.Set("job", "g1", "a", "123456789"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(rendezvous.Set("job", "g1", "a", "12345678"), IsOk());
  EXPECT_THAT(rendezvous.Set("job", "g1", "b", "12345678"), IsOk());
  EXPECT_THAT(rendezvous.Set("job", "g1", "c", "1"),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(rendezvous.Set("job", "g1", "a", "1"), IsOk());  // Not one more key.

  Wait too_much, first, second;
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "12345678"), IsOk());
  rendezvous.Get("job", "g1", {"a", "b"}, 100, too_much.callback());
  ASSERT_EQ(too_much.answers.size(), 1u);
  EXPECT_THAT(too_much.answers[0], StatusIs(absl::StatusCode::kResourceExhausted));
  rendezvous.Get("job", "g1", {"x"}, 100, first.callback());
  rendezvous.Get("job", "g1", {"x"}, 100, second.callback());
  EXPECT_TRUE(first.answers.empty());
  ASSERT_EQ(second.answers.size(), 1u);
  EXPECT_THAT(second.answers[0], StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(RendezvousTest, CountsTheBytesOfAScope) {
  RendezvousLimits limits;
  limits.bytes_per_scope = 20;
  Rendezvous rendezvous(limits);
  rendezvous.OpenScope("job", "g1");
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", std::string(15, 'x')), IsOk());
  EXPECT_THAT(rendezvous.Set("job", "g1", "b", std::string(5, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_THAT(rendezvous.Set("job", "g1", "a", "x"), IsOk());
  EXPECT_THAT(rendezvous.Set("job", "g1", "b", std::string(5, 'x')), IsOk());
}

TEST(RendezvousTest, ClosingAnswersEveryone) {
  Rendezvous rendezvous{{}};
  rendezvous.OpenScope("job", "g1");
  Wait wait;
  rendezvous.Get("job", "g1", {"a"}, 100, wait.callback());
  rendezvous.Close(absl::UnavailableError("bye"));
  ASSERT_EQ(wait.answers.size(), 1u);
  EXPECT_THAT(wait.answers[0], StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace fedshard::service
