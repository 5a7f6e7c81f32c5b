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
};

struct SampleSettings {
  std::vector<uint32_t> prompt;
  int32_t tokens = 0;  // 0 = no sample.
  double temperature = 1;
  uint64_t seed = 0;
};

struct Settings {
  ModelConfig model;
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
  int64_t chunk_bytes = 0;
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
