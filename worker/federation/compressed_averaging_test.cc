// Averaging with compressed changes against a reference that holds all groups in one place and
// encodes element by element: the same bits, for two and three groups and weights that differ from
// round to round. What rounding loses is owed in full, whatever a group weighs later.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "worker/collective/fake_comm.h"
#include "worker/collective/testing/ranks.h"
#include "worker/federation/averager.h"

namespace fedshard::federation {
namespace {

using Values = std::vector<float>;
using Weights = std::vector<std::vector<double>>;  // By round and group.

constexpr int64_t kElements = 3000;  // Divides neither into chunks nor into blocks.
constexpr int64_t kChunk = 1100;
constexpr int64_t kBlock = 256;

Values Noise(int seed, float scale) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor noise = at::randn({kElements}, generator) * scale;
  return {noise.const_data_ptr<float>(), noise.const_data_ptr<float>() + kElements};
}

// What local training does to the parameters of `group` in `round`.
Values LocalChange(int group, int round) { return Noise(100 * round + group, 0.01f + group); }

// Each element of a block as it arrives.
Values Rounded(const Values& block, Compression compression) {
  Values out;
  if (compression == Compression::kBf16) {
    for (const float x : block) out.push_back(static_cast<float>(static_cast<at::BFloat16>(x)));
    return out;
  }
  float largest = 0;
  for (const float x : block) largest = std::max(largest, std::fabs(x));
  const float scale = largest / 127;
  for (const float x : block) out.push_back(largest > 0 ? std::nearbyint(x / scale) * scale : 0);
  return out;
}

// All groups' rounds, block by block. A block of a chunk is summed by the group whose part it is
// in.
class Reference {
 public:
  Reference(int groups, Compression compression)
      : groups_(groups),
        compression_(compression),
        base_(Noise(7, 1)),
        residual_(groups, Values(kElements)) {}

  void Round(int round, const std::vector<double>& weights) {
    std::vector<Values> owed(groups_);
    for (int g = 0; g < groups_; ++g) {
      owed[g] = residual_[g];
      const Values change = LocalChange(g, round);
      for (int64_t i = 0; i < kElements; ++i) {
        const float shard = base_[i] + change[i];
        const float weighted = (shard - base_[i]) * static_cast<float>(weights[g]);
        owed[g][i] = weighted + owed[g][i];
      }
    }
    for (int64_t chunk = 0; chunk < kElements; chunk += kChunk) {
      const int64_t count = std::min(kChunk, kElements - chunk);
      const int64_t blocks_of_part = (count + groups_ * kBlock - 1) / (groups_ * kBlock);
      for (int64_t block = 0; block * kBlock < count; ++block) {
        const int64_t first = chunk + block * kBlock;
        Exchange(owed, first, std::min(kBlock, chunk + count - first), block / blocks_of_part);
      }
    }
  }

  // The parameters after the last round.
  at::Tensor parameters() { return at::from_blob(base_.data(), {kElements}); }

 private:
  void Exchange(const std::vector<Values>& owed, int64_t first, int64_t count, int64_t owner) {
    Values sum(count);
    for (int g = 0; g < groups_; ++g) {
      const Values mine(owed[g].begin() + first, owed[g].begin() + first + count);
      const Values sent = g == owner ? mine : Rounded(mine, compression_);
      for (int64_t i = 0; i < count; ++i) {
        sum[i] += sent[i];
        residual_[g][first + i] = mine[i] - sent[i];
      }
    }
    const Values mean = Rounded(sum, compression_);
    for (int64_t i = 0; i < count; ++i) {
      residual_[owner][first + i] = sum[i] - mean[i];
      base_[first + i] += mean[i];
    }
  }

  const int groups_;
  const Compression compression_;
  Values base_;
  std::vector<Values> residual_;
};

// The same with averagers; all groups end with the same bits.
at::Tensor Averaged(Compression compression, const Weights& weights) {
  const int groups = static_cast<int>(weights[0].size());
  collective::FakeWorld world(groups);
  std::vector<at::Tensor> results(groups);
  collective::RunRanks(groups, [&](int group) {
    const auto comm = world.Connect(group);
    Values start = Noise(7, 1);
    std::vector<at::Tensor> shards = {at::from_blob(start.data(), {kElements}).clone()};
    AveragerOptions options;
    options.chunk_bytes = kChunk * static_cast<int64_t>(sizeof(float));
    options.compression = compression;
    Averager averager(shards, *comm, options);
    for (size_t round = 0; round < weights.size(); ++round) {
      Values change = LocalChange(group, static_cast<int>(round));
      shards[0].add_(at::from_blob(change.data(), {kElements}));
      averager.Average(weights[round][group]);
      averager.Commit();
    }
    results[group] = shards[0];
  });
  for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0]));
  return results[0];
}

const Weights kOfTwo = {{0.5, 0.5}, {0.01, 0.99}, {0.99, 0.01}, {0.3, 0.7}, {0, 1}, {0.6, 0.4}};
const Weights kOfThree = {
    {0.2, 0.5, 0.3}, {0.01, 0.01, 0.98}, {0.9, 0.05, 0.05}, {0, 0.5, 0.5}, {0.4, 0.3, 0.3}};

class Compressed : public ::testing::TestWithParam<std::tuple<Compression, Weights>> {};

TEST_P(Compressed, IsTheReferenceBitForBit) {
  const auto& [compression, weights] = GetParam();
  Reference reference(static_cast<int>(weights[0].size()), compression);
  for (size_t round = 0; round < weights.size(); ++round) {
    reference.Round(static_cast<int>(round), weights[round]);
  }
  EXPECT_TRUE(at::equal(Averaged(compression, weights), reference.parameters()));
}

// In units of the mean nothing is ever lost: parameters differ from those of exact averaging by
// what is owed, which is the rounding of one round. It must not grow by the ratio of weights.
TEST_P(Compressed, DebtsDoNotGrowWithWeights) {
  const auto& [compression, weights] = GetParam();
  double largest = 0;  // Of what was ever encoded.
  Values exact = Noise(7, 1);
  for (size_t round = 0; round < weights.size(); ++round) {
    Values mean(kElements);
    for (size_t g = 0; g < weights[round].size(); ++g) {
      const Values change = LocalChange(static_cast<int>(g), static_cast<int>(round));
      for (int64_t i = 0; i < kElements; ++i) {
        mean[i] += change[i] * static_cast<float>(weights[round][g]);
        largest = std::max(largest, std::fabs(change[i] * weights[round][g]));
      }
    }
    for (int64_t i = 0; i < kElements; ++i) exact[i] += mean[i];
  }
  const double groups = static_cast<double>(weights[0].size());
  // Per encoding half a step: of bf16's eight bits, or of int8's 127 in the largest of the block.
  const double rounding = largest * (compression == Compression::kBf16 ? 0x1p-8 : 0.5 / 127);
  const at::Tensor difference =
      Averaged(compression, weights) - at::from_blob(exact.data(), {kElements});
  // Each group but the owner encodes once, the owner the sum, which is at most as large as all of
  // them; debts in what is encoded add a little.
  EXPECT_LT(difference.abs().max().item<double>(), 1.2 * (2 * groups - 1) * rounding);
}

INSTANTIATE_TEST_SUITE_P(All, Compressed,
                         ::testing::Combine(::testing::Values(Compression::kBf16,
                                                              Compression::kInt8),
                                            ::testing::Values(kOfTwo, kOfThree)));

TEST(CompressedAlone, IsNotRounded) {
  collective::FakeWorld world(1);
  const auto comm = world.Connect(0);
  std::vector<at::Tensor> shards = {at::linspace(0, 1, 300)};
  AveragerOptions options;
  options.compression = Compression::kInt8;
  Averager averager(shards, *comm, options);
  shards[0].add_(0.1);
  const at::Tensor trained = shards[0].clone();
  averager.Average(1);
  averager.Commit();
  EXPECT_TRUE(at::equal(shards[0], trained));
}

}  // namespace
}  // namespace fedshard::federation
