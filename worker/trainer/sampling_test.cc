// Picking tokens: greedy, by temperature and from the nucleus, with the probabilities that were
// asked for and the same tokens for the same seed.
#include "worker/trainer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace fedshard::trainer {
namespace {

constexpr int kDraws = 20'000;

std::map<uint32_t, int> Counts(const std::vector<float>& logits, const Sampling& sampling) {
  std::mt19937_64 random(5);
  std::map<uint32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[PickToken(logits, sampling, random)];
  return counts;
}

// Within five standard errors.
void ExpectShare(int count, double probability) {
  EXPECT_NEAR(count, kDraws * probability, 5 * std::sqrt(kDraws * probability * (1 - probability)));
}

// Probabilities 0.1, 0.2, 0.3, 0.4 at temperature 1.
const std::vector<float> kLogits = {std::log(0.1f), std::log(0.2f), std::log(0.3f), std::log(0.4f)};

TEST(PickToken, GreedyTakesTheFirstLargestAndDrawsNothing) {
  std::mt19937_64 random(1), untouched(1);
  EXPECT_EQ(PickToken({0.f, 3.f, -1.f, 3.f}, {0, 1}, random), 1u);
  EXPECT_EQ(random, untouched);
}

TEST(PickToken, FollowsTheDistribution) {
  const auto counts = Counts(kLogits, {1, 1});
  for (uint32_t token = 0; token < 4; ++token) {
    ExpectShare(counts.at(token), 0.1 * (token + 1));
  }
}

TEST(PickToken, TemperatureSharpensAndFlattens) {
  // Squared and square roots of the probabilities, made to sum to one.
  ExpectShare(Counts(kLogits, {0.5, 1}).at(3), 0.16 / 0.30);
  const double roots = std::sqrt(0.1) + std::sqrt(0.2) + std::sqrt(0.3) + std::sqrt(0.4);
  ExpectShare(Counts(kLogits, {2, 1}).at(0), std::sqrt(0.1) / roots);
}

TEST(PickToken, NucleusIsTheFewestTokensThatReachTopP) {
  // 0.4 + 0.3 reaches 0.65; the token that crosses the bound belongs to it.
  const auto counts = Counts(kLogits, {1, 0.65});
  EXPECT_EQ(counts.count(0), 0u);
  EXPECT_EQ(counts.count(1), 0u);
  ExpectShare(counts.at(2), 3.0 / 7);
  ExpectShare(counts.at(3), 4.0 / 7);
  const auto three = Counts(kLogits, {1, 0.75});
  EXPECT_EQ(three.count(0), 0u);
  ExpectShare(three.at(1), 2.0 / 9);
}

TEST(PickToken, NucleusAfterTheTemperature) {
  // At temperature 0.5 the likeliest has 0.53 alone.
  const auto counts = Counts(kLogits, {0.5, 0.5});
  EXPECT_EQ(counts.at(3), kDraws);
}

TEST(PickToken, SmallestNucleusIsOneTokenTheFirstOfEquals) {
  const auto counts = Counts({1.f, 2.f, 2.f}, {1, 1e-9});
  EXPECT_EQ(counts.at(1), kDraws);
}

TEST(PickToken, SameSeedSameTokens) {
  for (const double top_p : {1.0, 0.8}) {
    std::mt19937_64 random(7), same(7), other(8);
    int differ = 0;
    for (int i = 0; i < 100; ++i) {
      const uint32_t token = PickToken(kLogits, {1, top_p}, random);
      EXPECT_EQ(token, PickToken(kLogits, {1, top_p}, same));
      differ += token != PickToken(kLogits, {1, top_p}, other);
    }
    EXPECT_GT(differ, 10);
  }
}

TEST(PickToken, LargeLogitsDoNotOverflow) {
  std::mt19937_64 random(1);
  EXPECT_EQ(PickToken({1e30f, -1e30f}, {0.5, 1}, random), 0u);
  EXPECT_EQ(PickToken({-1e30f, 1e30f}, {0.5, 0.9}, random), 1u);
}

}  // namespace
}  // namespace fedshard::trainer
