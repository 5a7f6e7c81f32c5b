// Federated training of a tiny model in one process with ranks as threads, and what its references
// need. Used by one test at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/mesh.h"
#include "worker/engine/engine.h"
#include "worker/federation/averager.h"

namespace fedshard::numeric {

using Parameters = std::map<std::string, at::Tensor>;

struct FederatedRun {
  Mesh mesh;
  int64_t steps = 0;
  int64_t every = 0;            // A.
  std::vector<double> weights;  // By group.
  bool sgd = false;             // Otherwise AdamW.
  double learning_rate = 1e-2;
  federation::AveragerOptions averaging = {.chunk_bytes = 10'000};
  bool average_moments = false;
};

engine::EngineOptions TinyEngine(bool sgd, int64_t accumulation);

// Micro-batch `id` of `group` in `step`: [1, T+1]. A group's step has two.
at::Tensor MicroBatch(int group, int64_t step, int64_t id);

// Copies of the whole parameters. Collective over the engine's group.
Parameters Gather(engine::Engine& engine);

// Trains from the parameters of InitializeRandom(kTinySeed). Expects all ranks to end with the same
// parameters, and the hashes of each round to agree between groups; returns those of rank 0.
inline constexpr uint64_t kTinySeed = 5;
Parameters Federated(const FederatedRun& run);

void ExpectEqualBits(const Parameters& actual, const Parameters& expected);
// Square root of the summed squares of all differences.
double Distance(const Parameters& a, const Parameters& b);

}  // namespace fedshard::numeric
