// Each epoch visits every window exactly once, in an order that depends on seed and epoch and never
// changes.
#include "worker/data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace fedshard::data {
namespace {

std::vector<int64_t> Epoch(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < sampler.windows(); ++i) {
    order.push_back(sampler.FirstToken(epoch * sampler.windows() + i));
  }
  return order;
}

TEST(Sampler, EveryEpochIsAPermutationForAnySize) {
  for (const int64_t windows : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097}) {
    const Sampler sampler(windows * 8 + 1, 8, 3, Order::kShuffled);
    ASSERT_EQ(sampler.windows(), windows);
    for (const int64_t epoch : {0, 1, 5}) {
      const std::vector<int64_t> order = Epoch(sampler, epoch);
      const std::set<int64_t> seen(order.begin(), order.end());
      EXPECT_EQ(static_cast<int64_t>(seen.size()), windows);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), (windows - 1) * 8);
    }
  }
}

TEST(Sampler, SeedAndEpochChangeTheOrder) {
  const Sampler one(8001, 8, 1, Order::kShuffled), two(8001, 8, 2, Order::kShuffled);
  EXPECT_NE(Epoch(one, 0), Epoch(two, 0));
  EXPECT_NE(Epoch(one, 0), Epoch(one, 1));
}

TEST(Sampler, OrderLooksRandom) {
  // Mean distance of neighbours in a random order of n is n/3; within 5 standard errors.
  const Sampler sampler(10'001, 1, 9, Order::kShuffled);
  const std::vector<int64_t> order = Epoch(sampler, 0);
  double sum = 0;
  for (size_t i = 1; i < order.size(); ++i) sum += std::abs(order[i] - order[i - 1]);
  EXPECT_NEAR(sum / 9'999, 10'000 / 3.0, 5 * 10'000 / std::sqrt(18.0 * 10'000));
}

TEST(Sampler, EveryWindowIsEquallyLikelyAtEveryPlace) {
  // Chi-square of the (place, window) counts over many seeds: (n-1)^2 degrees of freedom, five
  // standard deviations.
  for (const int64_t n : {3, 5, 7, 16}) {
    std::vector<double> counts(n * n);
    const int seeds = 4000;
    for (int seed = 0; seed < seeds; ++seed) {
      const Sampler sampler(n + 1, 1, seed, Order::kShuffled);
      for (int64_t place = 0; place < n; ++place) ++counts[place * n + sampler.FirstToken(place)];
    }
    const double expected = static_cast<double>(seeds) / static_cast<double>(n);
    double chi_square = 0;
    for (const double count : counts) {
      chi_square += (count - expected) * (count - expected) / expected;
    }
    const double freedom = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom)) << n << " windows";
  }
}

TEST(Sampler, AFileOfBillionsOfWindowsNeedsNoTable) {
  const int64_t windows = int64_t{1} << 40;
  const Sampler sampler(windows * 4 + 1, 4, 3, Order::kShuffled);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 10'000; ++i) {
    const int64_t token = sampler.FirstToken(windows * 3 + i);
    EXPECT_EQ(token % 4, 0);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, windows * 4);
    seen.insert(token);
  }
  EXPECT_EQ(seen.size(), 10'000u);
}

TEST(Sampler, SequentialStartsAtMultiplesOfTheLengthAndWraps) {
  const Sampler sampler(100, 9, 0, Order::kSequential);  // 11 windows.
  EXPECT_EQ(sampler.windows(), 11);
  EXPECT_EQ(sampler.FirstToken(0), 0);
  EXPECT_EQ(sampler.FirstToken(10), 90);
  EXPECT_EQ(sampler.FirstToken(11), 0);
}

TEST(Sampler, OrderIsFrozen) {
  const Sampler sampler(1001, 10, 7, Order::kShuffled);
  std::vector<int64_t> first;
  for (int64_t i = 0; i < 5; ++i) first.push_back(sampler.FirstToken(i));
  EXPECT_EQ(first, (std::vector<int64_t>{480, 530, 740, 10, 210}));
  std::vector<int64_t> later;
  for (int64_t i = 0; i < 5; ++i) later.push_back(sampler.FirstToken(12'345'678'900 + i));
  EXPECT_EQ(later, (std::vector<int64_t>{300, 880, 140, 870, 680}));
}

}  // namespace
}  // namespace fedshard::data
