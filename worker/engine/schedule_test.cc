// Proves the learning rate at the ends and inside of warm-up and cosine, and that no schedule
// starts with rate 0.
#include "worker/engine/schedule.h"

#include <gtest/gtest.h>

namespace fedshard::engine {
namespace {

LearningRateSchedule Cosine() {
  LearningRateSchedule schedule;
  schedule.type = LearningRateSchedule::Type::kCosine;
  schedule.peak = 2e-3;
  schedule.warmup_tokens = 1000;
  schedule.total_tokens = 11000;
  schedule.final_ratio = 0.1;
  return schedule;
}

TEST(LearningRateSchedule, WarmsUpLinearlyWithTheStepCountedIn) {
  const LearningRateSchedule schedule = Cosine();
  EXPECT_DOUBLE_EQ(schedule.At(0, 100), 2e-4);
  EXPECT_DOUBLE_EQ(schedule.At(400, 100), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.At(900, 100), 2e-3);
}

TEST(LearningRateSchedule, CosineFallsToTheFinalRatioAndStays) {
  const LearningRateSchedule schedule = Cosine();
  EXPECT_DOUBLE_EQ(schedule.At(5900, 100), 2e-3 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(schedule.At(10900, 100), 2e-4);
  EXPECT_DOUBLE_EQ(schedule.At(50000, 100), 2e-4);
  double previous = schedule.At(900, 100);
  for (int64_t tokens = 1000; tokens < 11000; tokens += 100) {
    const double rate = schedule.At(tokens, 100);
    EXPECT_LT(rate, previous);
    previous = rate;
  }
}

TEST(LearningRateSchedule, ConstantMayWarmUp) {
  LearningRateSchedule schedule;
  schedule.peak = 0.5;
  EXPECT_DOUBLE_EQ(schedule.At(0, 10), 0.5);
  EXPECT_DOUBLE_EQ(schedule.At(1'000'000, 10), 0.5);
  schedule.warmup_tokens = 100;
  EXPECT_DOUBLE_EQ(schedule.At(40, 10), 0.25);
  EXPECT_DOUBLE_EQ(schedule.At(100, 10), 0.5);
}

TEST(LearningRateSchedule, WarmupLongerThanTheJobNeverDecays) {
  LearningRateSchedule schedule = Cosine();
  schedule.total_tokens = 500;
  EXPECT_DOUBLE_EQ(schedule.At(400, 100), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.At(2000, 100), 2e-3);
}

}  // namespace
}  // namespace fedshard::engine
