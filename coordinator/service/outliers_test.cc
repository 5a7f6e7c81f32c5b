// Proves that a spike in the loss or the gradient norm makes one event that names group, step and
// numbers; that noise, slow drift, skipped steps and the first steps make none.
#include "coordinator/service/outliers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fedshard::service {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

StepRecord At(int64_t step, double loss, double norm) {
  StepRecord record;
  record.step = step;
  record.loss = loss;
  record.gradient_norm = norm;
  return record;
}

// A falling loss with a wobble.
std::vector<StepRecord> Calm(int64_t first, int64_t count) {
  std::vector<StepRecord> steps;
  for (int64_t step = first; step < first + count; ++step) {
    const double wobble = 0.02 * std::sin(static_cast<double>(step) * 1.7);
    steps.push_back(At(step, 5.0 - 0.01 * static_cast<double>(step) + wobble, 1.0 + wobble));
  }
  return steps;
}

TEST(Outliers, CalmTrainingIsQuiet) {
  Outliers outliers;
  EXPECT_THAT(outliers.Look("a", 0, Calm(1, 300)), IsEmpty());
}

TEST(Outliers, ASpikeIsOneEventWithItsNumbers) {
  Outliers outliers;
  outliers.Look("a", 1, Calm(1, 40));
  const auto events = outliers.Look("a", 1, {At(41, 9.5, 1.0), At(42, 9.4, 1.0)});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason, "LOSS_SPIKE");
  EXPECT_EQ(events[0].job, "a");
  EXPECT_THAT(events[0].message, HasSubstr("group 1, step 41: loss 9.5"));
  // Over, and again.
  outliers.Look("a", 1, Calm(43, 5));
  EXPECT_EQ(outliers.Look("a", 1, {At(48, 9.5, 1.0)}).size(), 1u);
}

TEST(Outliers, GradientNormHasItsOwnWindow) {
  Outliers outliers;
  outliers.Look("a", 0, Calm(1, 40));
  const auto events = outliers.Look("a", 0, {At(41, 4.6, 30.0)});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason, "GRADIENT_NORM_OUTLIER");
}

TEST(Outliers, GroupsAndJobsAreApart) {
  Outliers outliers;
  outliers.Look("a", 0, Calm(1, 40));
  EXPECT_THAT(outliers.Look("a", 1, {At(1, 100, 100)}), IsEmpty());
  EXPECT_THAT(outliers.Look("b", 0, {At(1, 100, 100)}), IsEmpty());
  outliers.Forget("a");
  EXPECT_THAT(outliers.Look("a", 0, {At(41, 100, 100)}), IsEmpty());
}

TEST(Outliers, SkippedStepsDoNotCount) {
  Outliers outliers;
  outliers.Look("a", 0, Calm(1, 40));
  StepRecord skipped = At(41, std::numeric_limits<double>::infinity(), 1e30);
  skipped.skipped = true;
  EXPECT_THAT(outliers.Look("a", 0, {skipped}), IsEmpty());
  EXPECT_EQ(outliers.Look("a", 0, {At(42, 9.5, 1.0)}).size(), 1u);
}

}  // namespace
}  // namespace fedshard::service
