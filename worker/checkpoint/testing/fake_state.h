// The state of an engine that never was: every value is a function of what it belongs to, so that a
// checkpoint can be checked wherever its parts went.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/mesh.h"
#include "common/model_config.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/writer.h"

namespace fedshard::checkpoint::testing {

// Two blocks, GQA, sizes that no number of shards divides.
ModelConfig SmallModel(bool tied = false);

// Exact in bf16 when `dtype` is "BF16". `group` counts for moments only.
float ValueOf(const std::string& kind, int32_t group, const std::string& parameter, int64_t index,
              const std::string& dtype, int64_t salt = 0);

struct StateOptions {
  ModelConfig model = SmallModel();
  Mesh mesh;
  std::vector<std::string> moments = {"first_moment", "second_moment"};
  std::string moment_dtype = "F32";
  int64_t step = 400;
  int64_t salt = 0;  // Other values everywhere.
};

// One rank's writer options: of rank (group, 0, shard).
WriterOptions OptionsFor(const std::string& directory, const Mesh& mesh, int32_t group,
                         int32_t shard);
Manifest ManifestFor(const StateOptions& state);

// What rank (group, 0, shard) stores; `memory` holds the values.
std::vector<TensorToStore> TensorsOf(const StateOptions& state, int32_t group, int32_t shard,
                                     std::vector<std::vector<char>>& memory);

// All ranks of a mesh, each with its writer; returns the leader's result. `adjust` may change the
// options of each writer.
WriteResult WriteAll(const std::string& directory, const StateOptions& state,
                     const std::function<void(WriterOptions&)>& adjust = nullptr);

// Reads as the ranks of `mesh` would, piece by piece, and compares every value with what `written`
// gave out: the first difference is the error.
absl::Status CheckAs(const CheckpointReader& reader, const StateOptions& written, const Mesh& mesh);

}  // namespace fedshard::checkpoint::testing
