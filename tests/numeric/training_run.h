// Short training runs of a tiny Llama on any mesh, ranks as threads of this process, for tests that
// compare one way to make a step with another. Stateless; fails the test when replicas or shard
// groups disagree.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/mesh.h"
#include "tests/numeric/plain_llama.h"
#include "worker/engine/engine.h"

namespace fedshard::numeric {

// Three layers, grouped heads, two sequences of 24 tokens in a micro-batch, clipped AdamW.
engine::EngineOptions TinyOptions(bool tied);

struct TrainingRun {
  Parameters parameters;
  Parameters updates;  // What the run added to the initial parameters.
  std::string hash;
  std::vector<double> losses, norms;  // By step.
  // Of rank 0, over all steps; and of the whole padded model in fp32.
  int64_t shard_bytes = 0, replica_bytes = 0, padded_bytes = 0;
};

// `steps` steps on the same global batch of four micro-batches for every mesh:
// options.accumulation is set to 4 / ranks.
TrainingRun Train(const Mesh& mesh, engine::EngineOptions options, int steps);
// `steps` steps of options.accumulation micro-batches on each rank.
TrainingRun TrainOnTokens(const Mesh& mesh, const engine::EngineOptions& options, int steps);

// Over all parameters, the largest |a - b| relative to the parameter's largest |b|.
double LargestError(const Parameters& a, const Parameters& b);

}  // namespace fedshard::numeric
