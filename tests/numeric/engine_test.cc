// The engine against a plain Llama with one whole graph: gradients, losses, logits. Sharding,
// replication and accumulation do not change a bit of what five AdamW steps with clipping give.
// Bytes are those of the schedule. A step that fails changes nothing.
#include "worker/engine/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>

#include "tests/numeric/plain_llama.h"
#include "worker/collective/fake_comm.h"
#include "worker/collective/self_comm.h"
#include "worker/collective/testing/ranks.h"

namespace fedshard::numeric {
namespace {

using engine::Engine;
using engine::EngineOptions;

constexpr int64_t kT = 24;
constexpr int64_t kVocabulary = 67;

ModelConfig Model(int64_t kv_heads, bool tied) {
  ModelConfig model;
  model.vocab_size = kVocabulary;
  model.hidden_size = 64;
  model.intermediate_size = 104;
  model.num_hidden_layers = 3;
  model.num_attention_heads = 4;
  model.num_key_value_heads = kv_heads;
  model.head_dim = 16;
  model.max_position_embeddings = 64;
  model.rms_norm_eps = 1e-5;
  model.initializer_range = 0.1;  // Large enough that gradients of all parts are seen.
  model.tie_word_embeddings = tied;
  return model;
}

EngineOptions Options(int64_t accumulation = 1, const ModelConfig& model = Model(2, false)) {
  EngineOptions options;
  options.model = model;
  options.sequence_length = kT;
  options.micro_batch = 2;
  options.accumulation = accumulation;
  options.optimizer.clip = 0.5;
  return options;
}

EngineOptions PlainSgd(EngineOptions options) {
  options.optimizer.type = engine::OptimizerOptions::Type::kSgd;
  options.optimizer.weight_decay = 0;
  options.optimizer.clip = 0;
  return options;
}

at::Tensor Tokens(int64_t seed, int64_t sequences = 2) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed + 100);
  return at::randint(kVocabulary, {sequences, kT + 1}, generator, at::kLong);
}

Parameters Gather(Engine& engine) {
  Parameters parameters;
  for (const std::string& name : engine.ParameterNames()) {
    parameters[name] = engine.GatherParameter(name).clone();
  }
  return parameters;
}

// Largest |a - b| over the largest |b|.
double RelativeError(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b.to(at::kDouble)).abs().max() /
          b.to(at::kDouble).abs().max().clamp_min(1e-30))
      .item<double>();
}

struct Shape {
  const char* name;
  ModelConfig model;
};

class AgainstPlainLlama : public ::testing::TestWithParam<Shape> {};

TEST_P(AgainstPlainLlama, GradientsAndLossAndNorm) {
  collective::SelfComm self;
  Engine engine(PlainSgd(Options(2, GetParam().model)), self, self);
  engine.InitializeRandom(3);
  const Parameters before = Gather(engine);
  const std::vector<at::Tensor> batches = {Tokens(1), Tokens(2)};

  // One whole graph, in double precision.
  Parameters exact;
  std::vector<at::Tensor> leaves;
  for (const auto& [name, value] : before) {
    exact[name] = value.to(at::kDouble).set_requires_grad(true);
    leaves.push_back(exact[name]);
  }
  const int64_t tokens = 2 * 2 * kT;
  const at::Tensor loss = (PlainLossSum(GetParam().model, exact, batches[0]) +
                           PlainLossSum(GetParam().model, exact, batches[1])) /
                          static_cast<double>(tokens);
  const auto gradients = torch::autograd::grad({loss}, leaves);
  double norm = 0;
  for (const at::Tensor& gradient : gradients) norm += gradient.square().sum().item<double>();

  // With plain SGD at rate 1 the parameters move by exactly the gradient.
  const engine::StepResult result = engine.Step(batches, 1.0);
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
  EXPECT_NEAR(result.gradient_norm, std::sqrt(norm), 1e-5 * std::sqrt(norm));
  EXPECT_EQ(result.tokens, tokens);
  const Parameters after = Gather(engine);
  size_t i = 0;
  for (const auto& [name, value] : before) {
    EXPECT_LT(RelativeError(value.to(at::kDouble) - after.at(name).to(at::kDouble), gradients[i++]),
              2e-5)
        << name;
  }
}

TEST_P(AgainstPlainLlama, EvaluationAndLogits) {
  collective::SelfComm self;
  Engine engine(Options(1, GetParam().model), self, self);
  engine.InitializeRandom(4);
  const Parameters parameters = Gather(engine);
  const at::Tensor batch = Tokens(5, 3);
  const engine::LossSum sum = engine.Evaluate(batch);
  EXPECT_EQ(sum.tokens, 3 * kT);
  const double plain = PlainLossSum(GetParam().model, parameters, batch).item<double>();
  EXPECT_NEAR(sum.loss_sum, plain, 1e-5 * plain);
  for (const int64_t length : {1, 5, 24}) {
    const at::Tensor context = batch[0].narrow(0, 0, length).contiguous();
    const at::Tensor expected = PlainLogits(GetParam().model, parameters, context.unsqueeze(0));
    EXPECT_LT(RelativeError(engine.NextTokenLogits(context), expected[length - 1]), 1e-5) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstPlainLlama,
                         ::testing::Values(Shape{"gqa", Model(2, false)},
                                           Shape{"mha", Model(4, false)},
                                           Shape{"mqa", Model(1, false)},
                                           Shape{"tied", Model(2, true)}),
                         [](const auto& info) { return info.param.name; });

TEST(Accumulation, OfMicroBatchesIsOneLargeBatch) {
  collective::SelfComm self;
  EngineOptions large = PlainSgd(Options(1));
  large.micro_batch = 4;
  Engine one(large, self, self), two(PlainSgd(Options(2)), self, self);
  one.InitializeRandom(1);
  two.InitializeRandom(1);
  one.Step({at::cat({Tokens(1), Tokens(2)})}, 0.5);
  two.Step({Tokens(1), Tokens(2)}, 0.5);
  Parameters expected = Gather(one);
  for (const auto& [name, value] : Gather(two))
    EXPECT_LT(RelativeError(value, expected[name]), 1e-6) << name;
}

struct Outcome {
  Parameters parameters;
  std::string hash;
  std::vector<double> norms;
  std::vector<double> losses;
};

// `steps` steps of four micro-batches each on the mesh; `id_of` may change who takes which.
Outcome Train(
    const Mesh& mesh, const EngineOptions& base, int steps,
    const std::function<int64_t(int64_t)>& id_of = [](int64_t id) { return id; }) {
  EngineOptions options = base;
  options.accumulation = 4 / mesh.group_size();
  collective::FakeMesh fake(mesh);
  std::vector<Outcome> outcomes(mesh.world_size());
  std::vector<std::vector<uint64_t>> hashes(mesh.world_size());
  collective::RunRanks(mesh.world_size(), [&](int rank) {
    const MeshCoordinates at = mesh.CoordinatesOf(rank);
    collective::MeshComms comms = fake.Connect(rank);
    Engine engine(options, *comms.shard, *comms.replica);
    engine.InitializeRandom(9);
    Outcome& outcome = outcomes[rank];
    for (int step = 0; step < steps; ++step) {
      std::vector<at::Tensor> micro_batches;
      for (int64_t m = 0; m < options.accumulation; ++m) {
        const int64_t id = (at.replica * options.accumulation + m) * mesh.shards + at.shard;
        micro_batches.push_back(Tokens(10 * step + id_of(id)));
      }
      const engine::StepResult result = engine.Step(micro_batches, 1e-2);
      outcome.norms.push_back(result.gradient_norm);
      outcome.losses.push_back(result.loss);
      hashes[rank].push_back(engine.ShardHash());
    }
    outcome.parameters = Gather(engine);
    outcome.hash = engine.ParameterHash();
  });
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    EXPECT_EQ(outcomes[rank].hash, outcomes[0].hash);
    EXPECT_EQ(hashes[rank], hashes[mesh.CoordinatesOf(rank).shard])
        << "replicas differ after a step";
  }
  return outcomes[0];
}

bool SameBits(const Parameters& a, const Parameters& b) {
  for (const auto& [name, value] : a) {
    if (!at::equal(value, b.at(name))) return false;
  }
  return true;
}

const Mesh kSingle{1, 1, 1}, kDdp{1, 4, 1}, kFsdp{1, 1, 4}, kHsdp{1, 2, 2}, kFsdp2{1, 1, 2},
    kDdp2{1, 2, 1};

TEST(BitForBit, FiveClippedAdamWStepsOnEveryMesh) {
  for (const bool tied : {false, true}) {
    const EngineOptions options = Options(1, Model(2, tied));
    const Outcome single = Train(kSingle, options, 5);
    EXPECT_GT(single.norms[0], 0.5) << "clipping is not active";
    for (const Mesh& mesh : {kDdp, kFsdp, kHsdp, kFsdp2, kDdp2}) {
      const Outcome outcome = Train(mesh, options, 5);
      EXPECT_TRUE(SameBits(outcome.parameters, single.parameters))
          << mesh.replicas << "x" << mesh.shards;
      EXPECT_EQ(outcome.hash, single.hash);
      EXPECT_EQ(outcome.norms, single.norms);
    }
  }
}

TEST(BitForBit, SgdWithMomentumToo) {
  EngineOptions options = PlainSgd(Options());
  options.optimizer.momentum = 0.9;
  options.optimizer.weight_decay = 0.1;
  const Outcome single = Train(kSingle, options, 4);
  EXPECT_TRUE(SameBits(Train(kHsdp, options, 4).parameters, single.parameters));
}

TEST(BitForBit, NegativeControlOtherIdsGiveOtherBits) {
  const Outcome right = Train(kFsdp, Options(), 3);
  const Outcome swapped = Train(kFsdp, Options(), 3, [](int64_t id) { return (id + 1) % 4; });
  EXPECT_FALSE(SameBits(right.parameters, swapped.parameters)) << "the comparison cannot fail";
}

TEST(BitForBit, PoisonedBuffersChangeNothing) {
  EngineOptions poisoned = Options();
  poisoned.poison_buffers = true;
  EXPECT_TRUE(
      SameBits(Train(kFsdp2, poisoned, 3).parameters, Train(kFsdp2, Options(), 3).parameters));
}

TEST(Sharding, ThreeShardsAgreeToRounding) {
  // Three micro-batches on three ranks, against one rank with the same three.
  const auto run = [](const Mesh& mesh) {
    collective::FakeMesh fake(mesh);
    std::vector<Parameters> results(mesh.world_size());
    collective::RunRanks(mesh.world_size(), [&](int rank) {
      collective::MeshComms comms = fake.Connect(rank);
      Engine engine(PlainSgd(Options(3 / mesh.shards)), *comms.shard, *comms.replica);
      engine.InitializeRandom(2);
      std::vector<at::Tensor> micro_batches;
      for (int m = 0; m < 3 / mesh.shards; ++m)
        micro_batches.push_back(Tokens(m * mesh.shards + rank));
      engine.Step(micro_batches, 0.5);
      results[rank] = Gather(engine);
    });
    return results[0];
  };
  const Parameters one = run({1, 1, 1});
  for (const auto& [name, value] : run({1, 1, 3}))
    EXPECT_LT(RelativeError(value, one.at(name)), 1e-6) << name;
}

TEST(Bytes, AreThoseOfTheSchedule) {
  for (const bool tied : {false, true}) {
    for (const Mesh& mesh : {kFsdp, kHsdp, kFsdp2}) {
      collective::FakeMesh fake(mesh);
      collective::RunRanks(mesh.world_size(), [&](int rank) {
        collective::MeshComms comms = fake.Connect(rank);
        const int64_t accumulation = 4 / mesh.group_size();
        Engine engine(Options(accumulation, Model(2, tied)), *comms.shard, *comms.replica);
        engine.InitializeRandom(2);
        std::vector<at::Tensor> micro_batches(accumulation, Tokens(rank));
        const int64_t shard_before = comms.shard->bytes_sent(),
                      replica_before = comms.replica->bytes_sent();
        engine.Step(micro_batches, 1e-3);
        // Gathers per micro-batch: every unit once, all blocks but the last once more.
        const auto& shards = engine.master_shards();
        int64_t expected = 0, model = 0;
        const int64_t blocks = 3;
        for (int64_t unit = 0; unit < static_cast<int64_t>(shards.size()); ++unit) {
          const bool twice = unit >= 1 && unit < blocks;
          const int64_t bytes = static_cast<int64_t>(shards[unit].nbytes());
          expected += (twice ? 3 : 2) * (mesh.shards - 1) * bytes;
          model += bytes;
        }
        EXPECT_EQ(comms.shard->bytes_sent() - shard_before, expected * accumulation);
        EXPECT_EQ(comms.replica->bytes_sent() - replica_before,
                  2 * (mesh.replicas - 1) * model / mesh.replicas);
      });
    }
  }
}

TEST(Failure, NonFiniteGradientsThrowOnAllRanksAndChangeNothing) {
  collective::FakeMesh fake(kFsdp2);
  collective::RunRanks(2, [&](int rank) {
    collective::MeshComms comms = fake.Connect(rank);
    Engine engine(Options(1), *comms.shard, *comms.replica);
    engine.InitializeRandom(2);
    engine.Step({Tokens(rank)}, 1e-3);
    // One bad number on one rank.
    if (rank == 1) engine.master_shards()[1][5] = std::numeric_limits<float>::infinity();
    const uint64_t before = engine.ShardHash();
    EXPECT_THROW(engine.Step({Tokens(rank)}, 1e-3), engine::NonFiniteError);
    EXPECT_EQ(engine.ShardHash(), before);
  });
}

TEST(Failure, NonFiniteLossNamesTheRankWhoseItIs) {
  const Mesh mesh{1, 2, 2};
  const int64_t bad_token = kVocabulary - 1;
  for (int bad_rank = 0; bad_rank < mesh.world_size(); ++bad_rank) {
    collective::FakeMesh fake(mesh);
    collective::RunRanks(mesh.world_size(), [&](int rank) {
      collective::MeshComms comms = fake.Connect(rank);
      Engine engine(Options(2), *comms.shard, *comms.replica);
      engine.InitializeRandom(2);
      // The embedding of one token is bad, and only one rank sees it, in its second micro-batch.
      at::Tensor& embeddings = engine.master_shards()[0];
      const int64_t offset = bad_token * Model(2, false).hidden_size;
      if (offset / embeddings.numel() == comms.shard->rank()) {
        embeddings[offset % embeddings.numel()] = std::numeric_limits<float>::infinity();
      }
      std::vector<at::Tensor> micro_batches = {Tokens(rank).clamp_max(bad_token - 1),
                                               Tokens(rank + 4).clamp_max(bad_token - 1)};
      if (rank == bad_rank) micro_batches[1][0][3] = bad_token;
      try {
        engine.Step(micro_batches, 1e-3);
        ADD_FAILURE() << "rank " << rank << " made the step";
      } catch (const engine::NonFiniteError& error) {
        EXPECT_EQ(mesh.RankOf({0, error.replica, error.shard}), bad_rank) << "on rank " << rank;
      }
    });
  }
}

TEST(Failure, ALostPeerAnywhereInAStepLeavesTheParametersAlone) {
  for (uint32_t operation = 0; operation < 40; operation += 3) {
    collective::FakeWorld world(2);
    bool reached = false;
    collective::RunRanks(2, [&](int rank) {
      const auto shard = world.Connect(rank);
      collective::SelfComm replica;
      Engine engine(Options(2), *shard, replica);
      engine.InitializeRandom(2);
      const uint64_t before = engine.ShardHash();
      if (rank == 1) world.SetFault(1, operation, collective::Fault::kFail);
      try {
        engine.Step({Tokens(rank), Tokens(rank + 2)}, 1e-3);
      } catch (const collective::CommError&) {
        if (rank == 1) reached = true;
        EXPECT_EQ(engine.ShardHash(), before) << "operation " << operation << " rank " << rank;
      }
    });
    if (!reached) {
      EXPECT_GT(operation, 15u) << "a step has that many operations";
      return;
    }
  }
}

}  // namespace
}  // namespace fedshard::numeric
