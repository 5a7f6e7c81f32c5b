#include "tests/numeric/federated_run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/collective/fake_comm.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::numeric {
namespace {

constexpr int64_t kT = 16;
constexpr int64_t kVocabulary = 61;

// The life of one rank; returns the hashes of its rounds.
std::vector<uint64_t> TrainRank(const FederatedRun& run, int rank, collective::FakeMesh& fake,
                                Parameters& result) {
  const MeshCoordinates at = run.mesh.CoordinatesOf(rank);
  const int64_t accumulation = 2 / run.mesh.group_size();
  collective::MeshComms comms = fake.Connect(rank);
  engine::Engine engine(TinyEngine(run.sgd, accumulation), *comms.shard, *comms.replica);
  engine.InitializeRandom(kTinySeed);
  federation::Averager averager(engine.master_shards(), *comms.federation, run.averaging);
  std::vector<uint64_t> hashes;
  for (int64_t step = 0; step < run.steps; ++step) {
    std::vector<at::Tensor> micro_batches;
    for (int64_t m = 0; m < accumulation; ++m) {
      const int64_t id = (at.replica * accumulation + m) * run.mesh.shards + at.shard;
      micro_batches.push_back(MicroBatch(at.group, step, id));
    }
    engine.Step(micro_batches, run.learning_rate);
    if ((step + 1) % run.every != 0) continue;
    const double weight = run.weights[at.group];
    hashes.push_back(averager.Average(weight));
    averager.Commit();
    if (!run.average_moments) continue;
    averager.AverageState(engine.State(engine::StateKind::kFirstMoment), weight);
    averager.AverageState(engine.State(engine::StateKind::kSecondMoment), weight);
  }
  result = Gather(engine);
  return hashes;
}

}  // namespace

engine::EngineOptions TinyEngine(bool sgd, int64_t accumulation) {
  engine::EngineOptions options;
  options.model.vocab_size = kVocabulary;
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

at::Tensor MicroBatch(int group, int64_t step, int64_t id) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * group + 10 * step + id + 1);
  return at::randint(kVocabulary, {1, kT + 1}, generator, at::kLong);
}

Parameters Gather(engine::Engine& engine) {
  Parameters parameters;
  for (const std::string& name : engine.ParameterNames()) {
    parameters[name] = engine.GatherParameter(name).clone();
  }
  return parameters;
}

Parameters Federated(const FederatedRun& run) {
  collective::FakeMesh fake(run.mesh);
  std::vector<Parameters> results(run.mesh.world_size());
  std::vector<std::vector<uint64_t>> hashes(run.mesh.world_size());
  collective::RunRanks(run.mesh.world_size(),
                       [&](int rank) { hashes[rank] = TrainRank(run, rank, fake, results[rank]); });
  for (int rank = 0; rank < run.mesh.world_size(); ++rank) {
    EXPECT_EQ(hashes[rank], hashes[run.mesh.CoordinatesOf(rank).shard])
        << "shards differ between groups";
    EXPECT_EQ(hashes[rank].size(), static_cast<size_t>(run.steps / run.every));
    for (const auto& [name, value] : results[rank]) {
      EXPECT_TRUE(at::equal(value, results[0][name])) << name << " of rank " << rank;
    }
  }
  return results[0];
}

void ExpectEqualBits(const Parameters& actual, const Parameters& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
    EXPECT_TRUE(at::equal(actual.at(name), value)) << name;
  }
}

double Distance(const Parameters& a, const Parameters& b) {
  double squares = 0;
  for (const auto& [name, value] : a) {
    squares += (value - b.at(name)).to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

}  // namespace fedshard::numeric
