// Federated averaging of real training, in one process with ranks as threads: A = 1 with SGD is
// data-parallel training to rounding; A = 4 is bit for bit what F independent trainers give that
// are averaged by hand, with unequal weights too, however each group is sharded; groups are bitwise
// equal after each round.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "worker/collective/fake_comm.h"
#include "worker/collective/self_comm.h"
#include "worker/collective/testing/ranks.h"
#include "worker/engine/engine.h"
#include "worker/federation/averager.h"

namespace fedshard {
namespace {

constexpr int64_t kT = 16;
using Parameters = std::map<std::string, at::Tensor>;

engine::EngineOptions Options(bool sgd, int64_t accumulation) {
  engine::EngineOptions options;
  options.model.vocab_size = 61;
  options.model.hidden_size = 32;
  options.model.intermediate_size = 48;
  options.model.num_hidden_layers = 2;
  options.model.num_attention_heads = 4;
  options.model.num_key_value_heads = 2;
  options.model.head_dim = 8;
  options.model.max_position_embeddings = kT;
  options.sequence_length = kT;
  options.micro_batch = 1;
  options.accumulation = accumulation;
  if (sgd) {
    options.optimizer.type = engine::OptimizerOptions::Type::kSgd;
    options.optimizer.weight_decay = 0;
    options.optimizer.clip = 0;
  }
  return options;
}

// Micro-batch `id` of `group` in `step`: [1, T+1].
at::Tensor MicroBatch(int group, int64_t step, int64_t id) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * group + 10 * step + id + 1);
  return at::randint(61, {1, kT + 1}, generator, at::kLong);
}

Parameters Gather(engine::Engine& engine) {
  Parameters parameters;
  for (const std::string& name : engine.ParameterNames()) {
    parameters[name] = engine.GatherParameter(name).clone();
  }
  return parameters;
}

// `steps` steps of F groups of (R, S) with 2 micro-batches per step and group, averaged every
// `every` steps. Every rank's final parameters are compared; those of rank 0 are returned.
Parameters Federated(const Mesh& mesh, int64_t steps, int64_t every,
                     const std::vector<double>& weights, bool sgd, double learning_rate) {
  const int64_t accumulation = 2 / mesh.group_size();
  collective::FakeMesh fake(mesh);
  std::vector<Parameters> results(mesh.world_size());
  std::vector<uint64_t> hashes(mesh.world_size());
  collective::RunRanks(mesh.world_size(), [&](int rank) {
    const MeshCoordinates at = mesh.CoordinatesOf(rank);
    collective::MeshComms comms = fake.Connect(rank);
    engine::Engine engine(Options(sgd, accumulation), *comms.shard, *comms.replica);
    engine.InitializeRandom(5);
    federation::Averager averager(engine.master_shards(), *comms.federation,
                                  {.chunk_bytes = 10'000});
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<at::Tensor> micro_batches;
      for (int64_t m = 0; m < accumulation; ++m) {
        const int64_t id = (at.replica * accumulation + m) * mesh.shards + at.shard;
        micro_batches.push_back(MicroBatch(at.group, step, id));
      }
      engine.Step(micro_batches, learning_rate);
      if ((step + 1) % every == 0) {
        hashes[rank] = averager.Average(weights[at.group]);
        averager.Commit();
      }
    }
    results[rank] = Gather(engine);
  });
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    EXPECT_EQ(hashes[rank], hashes[mesh.CoordinatesOf(rank).shard])
        << "shards differ between groups";
    for (const auto& [name, value] : results[rank]) {
      EXPECT_TRUE(at::equal(value, results[0][name])) << name << " of rank " << rank;
    }
  }
  return results[0];
}

// The same with plain single-rank engines, averaged by hand in float, in the order of the groups.
Parameters Reference(int64_t steps, int64_t every, const std::vector<double>& weights) {
  collective::SelfComm self;
  std::vector<std::unique_ptr<engine::Engine>> groups;
  for (size_t g = 0; g < weights.size(); ++g) {
    groups.push_back(std::make_unique<engine::Engine>(Options(false, 2), self, self));
    groups.back()->InitializeRandom(5);
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const int group = static_cast<int>(g);
      groups[g]->Step({MicroBatch(group, step, 0), MicroBatch(group, step, 1)}, 1e-2);
    }
    if ((step + 1) % every != 0) continue;
    for (size_t unit = 0; unit < groups[0]->master_shards().size(); ++unit) {
      at::Tensor sum = groups[0]->master_shards()[unit] * static_cast<float>(weights[0]);
      for (size_t g = 1; g < groups.size(); ++g) {
        sum = sum + groups[g]->master_shards()[unit] * static_cast<float>(weights[g]);
      }
      for (auto& group : groups) group->master_shards()[unit].copy_(sum);
    }
  }
  return Gather(*groups[0]);
}

void ExpectEqualBits(Parameters& actual, const Parameters& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_TRUE(at::equal(actual[name], value)) << name;
}

TEST(FederatedTraining, MatchesIndependentTrainersThatAreAveraged) {
  const Parameters expected = Reference(8, 4, {0.5, 0.5});
  for (const Mesh& mesh : {Mesh{2, 1, 1}, Mesh{2, 1, 2}, Mesh{2, 2, 1}}) {
    Parameters actual = Federated(mesh, 8, 4, {0.5, 0.5}, false, 1e-2);
    ExpectEqualBits(actual, expected);
  }
}

TEST(FederatedTraining, UnequalWeights) {
  const Parameters expected = Reference(4, 4, {0.25, 0.75});
  Parameters actual = Federated({2, 1, 2}, 4, 4, {0.25, 0.75}, false, 1e-2);
  ExpectEqualBits(actual, expected);
  Parameters equal = Federated({2, 1, 2}, 4, 4, {0.5, 0.5}, false, 1e-2);
  EXPECT_FALSE(at::equal(equal["lm_head.weight"], expected.at("lm_head.weight")))
      << "the test does not see weights";
}

TEST(FederatedTraining, ThreeGroups) {
  const Parameters expected = Reference(4, 2, {0.2, 0.3, 0.5});
  Parameters actual = Federated({3, 1, 2}, 4, 2, {0.2, 0.3, 0.5}, false, 1e-2);
  ExpectEqualBits(actual, expected);
}

TEST(FederatedTraining, EveryStepWithSgdIsDataParallel) {
  // Data parallel: one group whose step has the micro-batches of both.
  collective::SelfComm self;
  engine::Engine together(Options(true, 4), self, self);
  together.InitializeRandom(5);
  const Parameters start = Gather(together);
  for (int64_t step = 0; step < 5; ++step) {
    together.Step({MicroBatch(0, step, 0), MicroBatch(0, step, 1), MicroBatch(1, step, 0),
                   MicroBatch(1, step, 1)},
                  0.5);
  }
  const Parameters expected = Gather(together);
  Parameters actual = Federated({2, 1, 2}, 5, 1, {0.5, 0.5}, true, 0.5);
  double largest = 0, moved = 0;
  for (const auto& [name, value] : expected) {
    largest = std::max(largest, (actual[name] - value).abs().max().item<double>());
    moved = std::max(moved, (value - start.at(name)).abs().max().item<double>());
  }
  EXPECT_GT(moved, 1e-2) << "nothing was trained";
  // Five steps, each rounding parameters of size one a few times.
  EXPECT_LT(largest, 5e-6);
}

}  // namespace
}  // namespace fedshard
