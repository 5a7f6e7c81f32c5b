// The engine on a GPU: the training steps of the CPU, to rounding, and bf16 near them; two ranks
// that share the GPU, over Gloo, as one rank; the same when every transfer is delayed, which shows
// whatever does not wait for it; averaging of shards on a GPU; and memory: what is allocated
// between and during steps is what the planner says, and does not grow.
#include "worker/engine/engine.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <functional>
#include <memory>

#include "planner/memory.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/stream_comm.h"
#include "worker/collective/group_factory.h"
#include "worker/collective/self_comm.h"
#include "worker/collective/store_adapter.h"
#include "worker/collective/testing/ranks.h"
#include "worker/federation/averager.h"

namespace fedshard::engine {
namespace {

using collective::Comm;
using collective::RunRanks;

constexpr int kSteps = 3;
constexpr int64_t kMicroBatches = 4;  // Of a step, over all ranks.

EngineOptions Options(bool cuda) {
  EngineOptions options;
  ModelConfig& model = options.model;
  model.vocab_size = 307;
  model.hidden_size = 64;
  model.intermediate_size = 104;
  model.num_hidden_layers = 4;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 16;
  model.max_position_embeddings = 64;
  model.initializer_range = 0.1;
  options.sequence_length = 48;
  options.micro_batch = 2;
  options.optimizer.clip = 0.5;
  // Not AdamW, which makes a whole step of a gradient that is nothing but rounding.
  options.optimizer.type = OptimizerOptions::Type::kSgd;
  options.poison_buffers = true;
  options.cuda = cuda;
  return options;
}

at::Tensor Tokens(const EngineOptions& options, int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed + 100);
  return at::randint(options.model.vocab_size, {options.micro_batch, options.sequence_length + 1},
                     generator, at::kLong);
}

struct Outcome {
  std::vector<double> losses;
  at::Tensor parameters;  // All, one after the other, on the CPU.
};

Outcome Train(EngineOptions options, Comm& shard) {
  collective::SelfComm alone;
  const int64_t mine = kMicroBatches / shard.size();
  options.accumulation = mine;
  Engine engine(options, shard, alone);
  engine.InitializeRandom(11);
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> batches;
    for (int64_t m = 0; m < mine; ++m) {
      batches.push_back(Tokens(options, step * kMicroBatches + m * shard.size() + shard.rank()));
    }
    outcome.losses.push_back(engine.Step(batches, 0.5).loss);
  }
  std::vector<at::Tensor> parameters;
  for (const std::string& name : engine.ParameterNames()) {
    parameters.push_back(engine.GatherParameter(name).reshape(-1).cpu());
  }
  outcome.parameters = at::cat(parameters);
  return outcome;
}

// Two ranks as threads, each with a stream of its own.
Outcome TrainTwo(const EngineOptions& options,
                 const std::function<std::unique_ptr<Comm>(int)>& connect) {
  Outcome outcome;
  RunRanks(2, [&](int rank) {
    const c10::cuda::CUDAStreamGuard guard(at::cuda::getStreamFromPool());
    const auto comm = connect(rank);
    const Outcome mine = Train(options, *comm);
    if (rank == 0) outcome = mine;
  });
  return outcome;
}

void ExpectEqual(const Outcome& got, const Outcome& expected, double tolerance) {
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(got.losses[step], expected.losses[step], tolerance) << "step " << step;
  }
  EXPECT_TRUE(at::allclose(got.parameters, expected.parameters, 0, tolerance))
      << (got.parameters - expected.parameters).abs().max().item<float>();
}

Outcome OnTheCpu() {
  collective::SelfComm alone;
  return Train(Options(/*cuda=*/false), alone);
}

TEST(GpuEngine, TrainsAsTheCpuDoes) {
  FEDSHARD_NEEDS_GPU();
  collective::SelfComm alone;
  ExpectEqual(Train(Options(/*cuda=*/true), alone), OnTheCpu(), 1e-3);
}

TEST(GpuEngine, TwoRanksShareTheGpuOverGloo) {
  FEDSHARD_NEEDS_GPU();
  auto rendezvous = std::make_shared<collective::MemoryKeyValue>();
  const Outcome got = TrainTwo(Options(/*cuda=*/true), [&](int rank) {
    const auto store = collective::MakeStore(rendezvous, std::chrono::seconds(60));
    collective::GroupOptions options;
    options.backend = collective::Backend::kGlooStaged;
    return std::move(collective::ConnectMesh({1, 1, 2}, rank, store, store, options).shard);
  });
  ExpectEqual(got, OnTheCpu(), 1e-3);
}

// Two ranks with transfers on streams of their own, each `delay` cycles late at several points.
Outcome TrainDelayed(const EngineOptions& options, int64_t delay) {
  gpu::StreamWorld world(2, delay);
  return TrainTwo(options, [&](int rank) { return world.Connect(rank); });
}

TEST(GpuEngine, DelayedTransfersChangeNothing) {
  FEDSHARD_NEEDS_GPU();
  const Outcome undelayed = TrainDelayed(Options(/*cuda=*/true), 0);
  ExpectEqual(undelayed, OnTheCpu(), 1e-3);
  ExpectEqual(TrainDelayed(Options(/*cuda=*/true), gpu::kLongDelay), undelayed, 1e-5);
}

TEST(GpuEngine, Bf16StaysCloseToFp32) {
  FEDSHARD_NEEDS_GPU();
  collective::SelfComm alone;
  EngineOptions options = Options(/*cuda=*/true);
  options.precision = Precision::kBf16;
  const Outcome got = Train(options, alone), expected = OnTheCpu();
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(got.losses[step], expected.losses[step], 0.02 * expected.losses[step]);
  }
}

TEST(GpuEngine, DelayedTransfersChangeNothingWhateverTheOptions) {
  FEDSHARD_NEEDS_GPU();
  EngineOptions options = Options(/*cuda=*/true);
  options.precision = Precision::kBf16;
  options.gather_precision = Precision::kBf16;
  options.reduce_precision = Precision::kBf16;
  options.recompute = Recompute::kBlock;
  ExpectEqual(TrainDelayed(options, gpu::kLongDelay), TrainDelayed(options, 0), 1e-5);
  options.accumulate_locally = true;
  options.recompute = Recompute::kSelective;
  ExpectEqual(TrainDelayed(options, gpu::kLongDelay), TrainDelayed(options, 0), 1e-5);
}

TEST(GpuAverager, AveragesThroughHostMemory) {
  FEDSHARD_NEEDS_GPU();
  auto rendezvous = std::make_shared<collective::MemoryKeyValue>();
  RunRanks(2, [&](int rank) {
    const auto store = collective::MakeStore(rendezvous, std::chrono::seconds(60));
    collective::GroupOptions options;
    options.backend = collective::Backend::kNccl;  // One rank a group: only averaging is left.
    const auto comms = collective::ConnectMesh({2, 1, 1}, rank, store, store, options);
    std::vector<at::Tensor> shards = {at::full({5000}, rank + 1.0, gpu::OnGpu())};
    federation::AveragerOptions averaging;
    averaging.chunk_bytes = 4096;
    federation::Averager averager(shards, *comms.federation, averaging);
    averager.Average(rank == 0 ? 0.25 : 0.75);
    averager.Commit();
    EXPECT_TRUE(at::allclose(shards[0], at::full_like(shards[0], 1.75)));
  });
}

int64_t Bytes(bool peak) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0];
  return peak ? stats.peak : stats.current;
}

TEST(GpuEngine, MemoryFollowsThePlan) {
  FEDSHARD_NEEDS_GPU();
  EngineOptions options = Options(/*cuda=*/true);
  options.model.hidden_size = 512;
  options.model.intermediate_size = 1408;
  options.model.vocab_size = 8192;
  options.model.head_dim = 128;
  options.sequence_length = 512;
  options.micro_batch = 4;
  options.precision = Precision::kBf16;
  options.optimizer.type = OptimizerOptions::Type::kAdamW;
  planner::MemoryOptions of_plan;
  of_plan.model = options.model;
  of_plan.sequence_length = options.sequence_length;
  of_plan.micro_batch = options.micro_batch;
  of_plan.bf16 = true;
  const planner::MemoryPlan plan = planner::PlanMemory(of_plan);

  collective::SelfComm alone;
  const std::vector<at::Tensor> batch = {Tokens(options, 1)};
  const auto train = [&] {
    auto engine = std::make_unique<Engine>(options, alone, alone);
    engine->InitializeRandom(1);
    engine->Step(batch, 1e-3);
    engine->Step(batch, 1e-3);
    return engine;
  };
  train();  // What cuBLAS keeps for good is there now.
  const int64_t before = Bytes(false);
  const std::unique_ptr<Engine> engine = train();
  const int64_t kept = Bytes(false) - before;
  const auto planned =
      static_cast<double>(plan.step() - plan.Bytes("activations") - plan.Bytes("transient"));
  EXPECT_NEAR(static_cast<double>(kept), planned, 0.05 * planned);

  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  engine->Step(batch, 1e-3);
  const int64_t peak = Bytes(true);
  // The plan is that of the CPU; attention on a GPU has buffers of its own.
  const auto in_step = static_cast<double>(plan.step());
  EXPECT_NEAR(static_cast<double>(peak - before), in_step, 0.1 * in_step);
  for (int step = 0; step < 20; ++step) engine->Step(batch, 1e-3);
  EXPECT_EQ(Bytes(true), peak);
  EXPECT_EQ(Bytes(false) - before, kept);
}

}  // namespace
}  // namespace fedshard::engine
