#include "tests/numeric/training_run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/collective/fake_comm.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::numeric {
namespace {

using engine::Engine;

Parameters Gather(Engine& engine) {
  Parameters parameters;
  for (const std::string& name : engine.ParameterNames()) {
    parameters[name] = engine.GatherParameter(name).clone();
  }
  return parameters;
}

at::Tensor MicroBatch(const engine::EngineOptions& options, int64_t step, int64_t id) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * step + id);
  return at::randint(options.model.vocab_size, {options.micro_batch, options.sequence_length + 1},
                     generator, at::kLong);
}

}  // namespace

engine::EngineOptions TinyOptions(bool tied) {
  engine::EngineOptions options;
  options.model.vocab_size = 67;
  options.model.hidden_size = 64;
  options.model.intermediate_size = 104;
  options.model.num_hidden_layers = 3;
  options.model.num_attention_heads = 4;
  options.model.num_key_value_heads = 2;
  options.model.head_dim = 16;
  options.model.max_position_embeddings = 64;
  options.model.rms_norm_eps = 1e-5;
  options.model.initializer_range = 0.1;  // Large enough that gradients of all parts are seen.
  options.model.tie_word_embeddings = tied;
  options.sequence_length = 24;
  options.micro_batch = 2;
  options.optimizer.clip = 0.5;
  return options;
}

TrainingRun Train(const Mesh& mesh, engine::EngineOptions options, int steps) {
  options.accumulation = 4 / mesh.group_size();
  return TrainOnTokens(mesh, options, steps);
}

TrainingRun TrainOnTokens(const Mesh& mesh, const engine::EngineOptions& options, int steps) {
  collective::FakeMesh fake(mesh);
  std::vector<TrainingRun> runs(mesh.world_size());
  std::vector<std::vector<uint64_t>> hashes(mesh.world_size());
  collective::RunRanks(mesh.world_size(), [&](int rank) {
    const MeshCoordinates at = mesh.CoordinatesOf(rank);
    collective::MeshComms comms = fake.Connect(rank);
    Engine engine(options, *comms.shard, *comms.replica);
    engine.InitializeRandom(9);
    TrainingRun& run = runs[rank];
    const Parameters before = Gather(engine);
    const int64_t shard_bytes = comms.shard->bytes_sent();
    const int64_t replica_bytes = comms.replica->bytes_sent();
    for (int step = 0; step < steps; ++step) {
      std::vector<at::Tensor> micro_batches;
      for (int64_t m = 0; m < options.accumulation; ++m) {
        const int64_t id = (at.replica * options.accumulation + m) * mesh.shards + at.shard;
        micro_batches.push_back(MicroBatch(options, step, id));
      }
      const engine::StepResult result = engine.Step(micro_batches, 1e-2);
      run.norms.push_back(result.gradient_norm);
      run.losses.push_back(result.loss);
      hashes[rank].push_back(engine.ShardHash());
    }
    run.shard_bytes = comms.shard->bytes_sent() - shard_bytes;
    run.replica_bytes = comms.replica->bytes_sent() - replica_bytes;
    run.padded_bytes = engine.padded_parameters() * static_cast<int64_t>(sizeof(float));
    run.hash = engine.ParameterHash();
    run.parameters = Gather(engine);
    for (const auto& [name, value] : run.parameters) run.updates[name] = value - before.at(name);
  });
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    EXPECT_EQ(runs[rank].hash, runs[0].hash);
    EXPECT_EQ(hashes[rank], hashes[mesh.CoordinatesOf(rank).shard])
        << "replicas differ after a step";
  }
  return runs[0];
}

double LargestError(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (const auto& [name, value] : a) {
    const at::Tensor exact = b.at(name).to(at::kDouble);
    const at::Tensor error = (value.to(at::kDouble) - exact).abs().max();
    largest = std::max(largest, (error / exact.abs().max().clamp_min(1e-30)).item<double>());
  }
  return largest;
}

}  // namespace fedshard::numeric
