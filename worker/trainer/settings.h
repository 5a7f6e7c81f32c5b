// A rank's settings in plain types, from the job specification.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mesh.h"
#include "common/model_config.h"
#include "worker/engine/schedule.h"

namespace fedshard::trainer {

struct OptimizerSettings {
  bool adamw = true;  // Otherwise SGD.
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, clip = 0, momentum = 0;
  bool bf16_moments = false;
};

enum class RecomputeSetting { kNone, kBlock, kSelective };

// How a step computes and what it sends.
struct StepSettings {
  bool bf16 = false;
  bool gather_bf16 = false;
  bool reduce_bf16 = false;
  bool force = false;  // bf16 even where it is emulated.
  RecomputeSetting recompute = RecomputeSetting::kNone;
  bool accumulate_locally = false;
};

enum class OuterOptimizer { kNone, kMomentum, kNesterov, kAdam };
enum class MomentsPolicy { kLocal, kAverage, kReset };
enum class Compression { kNone, kBf16, kInt8 };

struct FederationSettings {
  int64_t chunk_bytes = 0;
  OuterOptimizer outer = OuterOptimizer::kNone;
  double learning_rate = 1, momentum = 0, beta1 = 0, beta2 = 0, eps = 0;
  MomentsPolicy moments = MomentsPolicy::kLocal;
  Compression compression = Compression::kNone;
  int64_t overlap_steps = 0;
};

struct CheckpointSettings {
  std::string directory;  // Empty = no checkpoints are written.
  int64_t keep = 0;
  std::string resume;  // The checkpoint to begin with; empty = none.
};

struct SampleSettings {
  std::vector<uint32_t> prompt;
  int32_t tokens = 0;  // 0 = no sample.
  double temperature = 1;
  uint64_t seed = 0;
};

struct Settings {
  ModelConfig model;
  std::string model_config;    // The text of config.json.
  std::string init_directory;  // Weights come from there; empty = drawn from the seed.
  uint64_t model_seed = 0;
  std::string train_path;
  std::string validation_path;
  int64_t sequence_length = 0;  // T
  uint64_t data_seed = 0;
  bool shuffled = true;
  Mesh mesh;
  bool averages = false;
  int64_t micro_batch = 1;   // B
  int64_t accumulation = 1;  // M
  OptimizerSettings optimizer;
  engine::LearningRateSchedule schedule;
  int64_t check_replicas_every = 0;
  StepSettings step;
  int64_t non_finite_limit = 0;
  FederationSettings federation;
  CheckpointSettings checkpoint;
  int64_t evaluation_sequences = 0;
  SampleSettings sample;
  bool cuda = false;
  int threads = 1;
  int64_t collective_timeout_ms = 60'000;

  int64_t samples_per_step() const { return micro_batch * accumulation * mesh.group_size(); }
};

// `spec`: a serialised fedshard.v1.JobSpec. INVALID_ARGUMENT names the field.
absl::StatusOr<Settings> ParseSettings(const std::string& spec);

}  // namespace fedshard::trainer
