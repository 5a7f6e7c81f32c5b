// Averaging gives what an in-process reference gives, the same bits in every group, for unequal
// weights and chunks that do not divide the shards; an aborted average leaves no trace.
#include "worker/federation/averager.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/collective/fake_comm.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::federation {
namespace {

std::vector<at::Tensor> Shards(int group) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(group + 5);
  return {at::randn({4096}, generator), at::randn({1000}, generator)};
}

class Averaging : public ::testing::TestWithParam<std::vector<double>> {};

TEST_P(Averaging, MatchesTheReference) {
  const std::vector<double>& weights = GetParam();
  const int groups = static_cast<int>(weights.size());
  // Reference in double; the result may differ by the rounding of groups + 1 float operations.
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 2; ++i) {
    at::Tensor sum = at::zeros_like(Shards(0)[i], at::kDouble);
    for (int g = 0; g < groups; ++g) sum += Shards(g)[i].to(at::kDouble) * weights[g];
    expected.push_back(sum);
  }
  for (const int64_t chunk_bytes : {4, 400, 4096, 1 << 20}) {
    if (chunk_bytes == 4 && groups > 2) continue;  // One element a message: two groups suffice.
    collective::FakeWorld world(groups);
    std::vector<uint64_t> hashes(groups);
    std::vector<std::vector<at::Tensor>> results(groups);
    collective::RunRanks(groups, [&](int group) {
      const auto comm = world.Connect(group);
      std::vector<at::Tensor> shards = Shards(group);
      Averager averager(shards, *comm, {.chunk_bytes = chunk_bytes});
      hashes[group] = averager.Average(weights[group]);
      for (int i = 0; i < 2; ++i)
        EXPECT_TRUE(at::equal(shards[i], Shards(group)[i])) << "not out of place";
      averager.Abort();
      EXPECT_EQ(averager.Average(weights[group]), hashes[group])
          << "an aborted try changed something";
      averager.Commit();
      results[group] = shards;
    });
    for (int g = 0; g < groups; ++g) {
      EXPECT_EQ(hashes[g], hashes[0]);
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(at::equal(results[g][i], results[0][i]));
        EXPECT_TRUE(at::allclose(results[g][i].to(at::kDouble), expected[i], 3e-7, 1e-6));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, Averaging,
                         ::testing::Values(std::vector<double>{1.0}, std::vector<double>{0.5, 0.5},
                                           std::vector<double>{0.3, 0.7},
                                           std::vector<double>{0.2, 0.5, 0.3}));

TEST(Averager, EqualWeightsOfTwoAreExact) {
  collective::FakeWorld world(2);
  collective::RunRanks(2, [&](int group) {
    const auto comm = world.Connect(group);
    std::vector<at::Tensor> shards = Shards(group);
    Averager averager(shards, *comm, {});
    averager.Average(0.5);
    averager.Commit();
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(shards[i], Shards(0)[i] * 0.5 + Shards(1)[i] * 0.5));
    }
  });
}

TEST(Averager, CommitNeedsAnAverage) {
  collective::FakeWorld world(1);
  const auto comm = world.Connect(0);
  std::vector<at::Tensor> shards = Shards(0);
  Averager averager(shards, *comm, {});
  EXPECT_THROW(averager.Commit(), c10::Error);
}

}  // namespace
}  // namespace fedshard::federation
