// Rounds beyond the plain mean against references in double: every outer optimizer over several
// rounds, compression with error feedback, aborts that leave no trace, and state that is taken up
// again. All groups end each round with the same bits.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "worker/collective/fake_comm.h"
#include "worker/collective/testing/ranks.h"
#include "worker/federation/averager.h"

namespace fedshard::federation {
namespace {

using Outer = OuterOptimizerOptions;

constexpr int64_t kElements = 3000;  // Divides neither into chunks nor into blocks.

at::Tensor Noise(uint64_t seed, double scale) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({kElements}, generator) * scale;
}

// What local training does to the parameters of `group` in `round`.
at::Tensor LocalChange(int group, int round) { return Noise(100 * round + group, 0.01 + group); }

struct Rounds {
  std::vector<at::Tensor> parameters;  // By group, after the last round.
  int64_t bytes = 0;                   // Sent by the first group's rank.
};

// Trains `rounds` rounds in every group; `between` sees each group's averager before each round.
Rounds Train(const std::vector<double>& weights, const AveragerOptions& options, int rounds,
             const std::function<void(Averager&, int group, int round)>& between = nullptr) {
  const int groups = static_cast<int>(weights.size());
  collective::FakeWorld world(groups);
  Rounds result;
  result.parameters.resize(groups);
  std::vector<std::vector<uint64_t>> hashes(groups);
  collective::RunRanks(groups, [&](int group) {
    const auto comm = world.Connect(group);
    std::vector<at::Tensor> shards = {Noise(7, 1)};
    Averager averager(shards, *comm, options);
    for (int round = 0; round < rounds; ++round) {
      if (between) between(averager, group, round);
      shards[0].add_(LocalChange(group, round));
      hashes[group].push_back(averager.Average(weights[group]));
      averager.Commit();
    }
    result.parameters[group] = shards[0];
    if (group == 0) result.bytes = comm->bytes_sent();
  });
  for (int group = 1; group < groups; ++group) {
    EXPECT_EQ(hashes[group], hashes[0]);
    EXPECT_TRUE(at::equal(result.parameters[group], result.parameters[0])) << group;
  }
  return result;
}

// The same in double, from the formulas of outer_optimizer.h.
at::Tensor Reference(const std::vector<double>& weights, const Outer& outer, int rounds) {
  at::Tensor base = Noise(7, 1).to(at::kDouble);
  at::Tensor first = at::zeros_like(base), second = at::zeros_like(base);
  for (int round = 0; round < rounds; ++round) {
    at::Tensor mean = at::zeros_like(base);
    for (size_t group = 0; group < weights.size(); ++group) {
      mean += (base + LocalChange(static_cast<int>(group), round)) * weights[group];
    }
    const at::Tensor g = base - mean;
    switch (outer.type) {
      case Outer::Type::kNone:
        base = mean;
        break;
      case Outer::Type::kMomentum:
        first = outer.momentum * first + g;
        base = base - outer.learning_rate * first;
        break;
      case Outer::Type::kNesterov:
        first = outer.momentum * first + g;
        base = base - outer.learning_rate * (g + outer.momentum * first);
        break;
      case Outer::Type::kAdam:
        first = outer.beta1 * first + (1 - outer.beta1) * g;
        second = outer.beta2 * second + (1 - outer.beta2) * g * g;
        base = base - outer.learning_rate * first / (second.sqrt() + outer.eps);
        break;
    }
  }
  return base;
}

double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

const std::vector<std::vector<double>> kWeights = {{0.5, 0.5}, {0.2, 0.5, 0.3}};

class OuterOptimizers : public ::testing::TestWithParam<Outer> {};

TEST_P(OuterOptimizers, FollowTheirFormula) {
  for (const auto& weights : kWeights) {
    AveragerOptions options;
    options.chunk_bytes = 4 * 1100;
    options.outer = GetParam();
    const Rounds rounds = Train(weights, options, 5);
    const at::Tensor expected = Reference(weights, options.outer, 5);
    EXPECT_LT(LargestDifference(rounds.parameters[0], expected), 2e-5);
    // The reference must not be met by doing nothing else than averaging.
    if (options.outer.type != Outer::Type::kNone) {
      EXPECT_GT(LargestDifference(Reference(weights, {}, 5), expected), 0.1);
    }
  }
}

TEST_P(OuterOptimizers, AnAbortedRoundLeavesNoTrace) {
  AveragerOptions options;
  options.outer = GetParam();
  options.compression = Compression::kInt8;
  const Rounds plain = Train({0.4, 0.6}, options, 4);
  const Rounds aborted = Train({0.4, 0.6}, options, 4, [](Averager& averager, int group, int) {
    averager.Average(group == 0 ? 0.9 : 0.1);
    averager.Abort();
  });
  EXPECT_TRUE(at::equal(plain.parameters[0], aborted.parameters[0]));
}

TEST_P(OuterOptimizers, GoOnFromTheirSavedState) {
  AveragerOptions options;
  options.outer = GetParam();
  options.compression = Compression::kBf16;
  const Rounds whole = Train({0.4, 0.6}, options, 4);
  // The same four rounds, with another averager taking over after the second.
  collective::FakeWorld before(2), after(2);
  collective::RunRanks(2, [&](int group) {
    const double weight = group == 0 ? 0.4 : 0.6;
    std::vector<at::Tensor> shards = {Noise(7, 1)};
    const auto first_comm = before.Connect(group);
    Averager first(shards, *first_comm, options);
    const auto round = [&](Averager& averager, int number) {
      shards[0].add_(LocalChange(group, number));
      averager.Average(weight);
      averager.Commit();
    };
    round(first, 0);
    round(first, 1);
    std::vector<at::Tensor> loaded = {shards[0].clone()};
    shards[0].zero_();
    const auto second_comm = after.Connect(group);
    Averager second(shards, *second_comm, options);
    shards[0].copy_(loaded[0]);
    second.Restart();
    const std::vector<AveragerState> from = first.State(), to = second.State();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) to[i].tensors[0].copy_(from[i].tensors[0]);
    round(second, 2);
    round(second, 3);
    EXPECT_TRUE(at::equal(shards[0], whole.parameters[0]));
  });
}

INSTANTIATE_TEST_SUITE_P(All, OuterOptimizers,
                         ::testing::Values(Outer{Outer::Type::kNone},
                                           Outer{Outer::Type::kMomentum, 0.7, 0.9},
                                           Outer{Outer::Type::kNesterov, 0.7, 0.9},
                                           Outer{Outer::Type::kAdam, 0.1, 0, 0.9, 0.99, 1e-3}));

TEST(Momentum, WithoutMomentumAndAtRateOneIsTheMean) {
  AveragerOptions options;
  options.outer = {Outer::Type::kMomentum, 1.0, 0.0};
  const Rounds rounds = Train({0.5, 0.5}, options, 3);
  EXPECT_LT(LargestDifference(rounds.parameters[0], Reference({0.5, 0.5}, {}, 3)), 2e-6);
}

TEST(Compressed, SendsAHalfOrAQuarterOfTheBytes) {
  for (const auto& weights : kWeights) {
    const int64_t groups = static_cast<int64_t>(weights.size());
    const int64_t blocks = (kElements + groups * 256 - 1) / (groups * 256);
    for (const Compression compression : {Compression::kBf16, Compression::kInt8}) {
      AveragerOptions options;
      options.compression = compression;
      const int64_t block_bytes = compression == Compression::kBf16 ? 512 : 256 + 4;
      // Two hops of (F-1) parts each, three rounds.
      EXPECT_EQ(Train(weights, options, 3).bytes, 3 * 2 * (groups - 1) * blocks * block_bytes);
    }
  }
}

// The sum of what was applied follows the sum of what was wanted: the error stays that of one
// round, however many there are. Without feedback it would add up.
TEST(Compressed, ErrorFeedbackKeepsTheErrorBounded) {
  for (const Compression compression : {Compression::kBf16, Compression::kInt8}) {
    AveragerOptions options;
    options.compression = compression;
    const auto error = [&](int rounds, bool feedback) {
      const Rounds run =
          Train({0.3, 0.7}, options, rounds, [feedback](Averager& averager, int, int) {
            if (!feedback) averager.State().back().tensors[0].zero_();
          });
      return (run.parameters[0].to(at::kDouble) - Reference({0.3, 0.7}, {}, rounds))
          .norm()
          .item<double>();
    };
    const double one = error(1, true), many = error(40, true), without = error(40, false);
    EXPECT_GT(one, 0);
    EXPECT_LT(many, 2.5 * one);
    EXPECT_GT(without, 1.5 * many);
  }
}

// Two rounds: averaging begins on the parameters before the last change, which then stays. The
// groups agree on the bits of the result, and differ by their last changes alone.
TEST(Overlap, AddsTheChangeOfTheAverageToWhatCameAfter) {
  for (const Outer& outer : {Outer{}, Outer{Outer::Type::kNesterov, 0.7, 0.9}}) {
    for (const Compression compression : {Compression::kNone, Compression::kInt8}) {
      AveragerOptions options;
      options.outer = outer;
      options.compression = compression;
      options.chunk_bytes = 4 * 1100;
      collective::FakeWorld world(2), plain_world(2);
      std::vector<uint64_t> hashes(2);
      collective::RunRanks(2, [&](int group) {
        const double weight = group == 0 ? 0.25 : 0.75;
        const auto comm = world.Connect(group), plain_comm = plain_world.Connect(group);
        std::vector<at::Tensor> shards = {Noise(7, 1)}, plain = {Noise(7, 1)};
        Averager averager(shards, *comm, options), reference(plain, *plain_comm, options);
        for (int round = 0; round < 2; ++round) {
          shards[0].add_(LocalChange(group, round));
          const at::Tensor before = shards[0].clone();
          averager.Begin(weight);
          shards[0].add_(LocalChange(group, 10 + round));  // While it runs.
          const at::Tensor during = shards[0].clone();
          hashes[group] = averager.Average(weight);
          EXPECT_TRUE(at::equal(shards[0], during)) << "not out of place";
          averager.Commit();
          // The same average without overlap.
          plain[0].copy_(before);
          EXPECT_EQ(reference.Average(weight), hashes[group]);
          reference.Commit();
          EXPECT_TRUE(at::equal(shards[0], during + (plain[0] - before)));
        }
        // Aborted, it leaves no trace: the next average is of the shards as they are.
        averager.Begin(weight);
        shards[0].add_(1);
        averager.Average(weight);
        averager.Abort();
        plain[0].copy_(shards[0]);
        EXPECT_EQ(averager.Average(weight), reference.Average(weight));
        averager.Commit();
        reference.Commit();
        EXPECT_TRUE(at::equal(shards[0], plain[0]));
        // Begun with another weight than the plan has in the end.
        averager.Begin(0.5);
        EXPECT_EQ(averager.Average(weight), reference.Average(weight));
      });
      EXPECT_EQ(hashes[0], hashes[1]);
    }
  }
}

TEST(AverageState, IsTheWeightedMeanAlsoInBf16) {
  collective::FakeWorld world(2);
  collective::RunRanks(2, [&](int group) {
    const auto comm = world.Connect(group);
    std::vector<at::Tensor> shards = {Noise(7, 1)};
    Averager averager(shards, *comm, {.chunk_bytes = 4000});
    std::vector<at::Tensor> moments = {Noise(group, 1)};
    averager.AverageState(moments, group == 0 ? 0.25 : 0.75);
    const at::Tensor expected = Noise(0, 1) * 0.25 + Noise(1, 1) * 0.75;
    EXPECT_TRUE(at::allclose(moments[0], expected, 1e-6, 1e-6));
    std::vector<at::Tensor> halves = {Noise(group, 1).to(at::kBFloat16)};
    averager.AverageState(halves, group == 0 ? 0.25 : 0.75);
    EXPECT_EQ(halves[0].scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::allclose(halves[0].to(at::kFloat), expected, 0.02, 0.02));
  });
}

TEST(WireCodec, Int8IsWithinHalfAStepOfItsBlock) {
  const WireCodec codec(Compression::kInt8);
  at::Tensor values = Noise(3, 5).narrow(0, 0, 1024).clone();
  values.narrow(0, 256, 256).zero_();       // A block of zeros.
  values.narrow(0, 512, 256).mul_(1e-40f);  // One of denormals.
  at::Tensor bytes = at::empty({codec.Bytes(1024)}, at::kByte);
  codec.Encode(values, bytes);
  at::Tensor decoded = at::empty({1024});
  codec.Decode(bytes, decoded);
  for (int block = 0; block < 4; ++block) {
    const at::Tensor in = values.narrow(0, 256 * block, 256);
    const double step = in.abs().max().item<double>() / 127;
    EXPECT_LE(LargestDifference(in, decoded.narrow(0, 256 * block, 256)),
              block == 2 ? 127 * step : 0.5001 * step)
        << block;
  }
  EXPECT_TRUE(at::equal(decoded.narrow(0, 256, 256), at::zeros({256})));
}

}  // namespace
}  // namespace fedshard::federation
