#include "worker/trainer/model_options.h"

namespace fedshard::trainer {

engine::EngineOptions EngineOptionsFrom(const Settings& settings, int gpu) {
  engine::EngineOptions options;
  options.model = settings.model;
  const OptimizerSettings& o = settings.optimizer;
  options.optimizer = {
      o.adamw ? engine::OptimizerOptions::Type::kAdamW : engine::OptimizerOptions::Type::kSgd,
      o.beta1,
      o.beta2,
      o.eps,
      o.weight_decay,
      o.clip,
      o.momentum,
      o.bf16_moments ? engine::Precision::kBf16 : engine::Precision::kFp32};
  options.sequence_length = settings.sequence_length;
  options.micro_batch = settings.micro_batch;
  options.accumulation = settings.accumulation;
  const auto precision = [](bool bf16) {
    return bf16 ? engine::Precision::kBf16 : engine::Precision::kFp32;
  };
  options.precision = precision(settings.step.bf16);
  options.gather_precision = precision(settings.step.gather_bf16);
  options.reduce_precision = precision(settings.step.reduce_bf16);
  options.recompute =
      settings.step.recompute == RecomputeSetting::kBlock       ? engine::Recompute::kBlock
      : settings.step.recompute == RecomputeSetting::kSelective ? engine::Recompute::kSelective
                                                                : engine::Recompute::kNone;
  options.accumulate_locally = settings.step.accumulate_locally;
  options.cuda = settings.cuda;
  options.gpu = gpu;
  return options;
}

federation::AveragerOptions AveragerOptionsFrom(const FederationSettings& settings) {
  using Outer = federation::OuterOptimizerOptions;
  federation::AveragerOptions options;
  options.chunk_bytes = settings.chunk_bytes;
  options.outer.type = settings.outer == OuterOptimizer::kMomentum   ? Outer::Type::kMomentum
                       : settings.outer == OuterOptimizer::kNesterov ? Outer::Type::kNesterov
                       : settings.outer == OuterOptimizer::kAdam     ? Outer::Type::kAdam
                                                                     : Outer::Type::kNone;
  options.outer.learning_rate = settings.learning_rate;
  options.outer.momentum = settings.momentum;
  options.outer.beta1 = settings.beta1;
  options.outer.beta2 = settings.beta2;
  options.outer.eps = settings.eps;
  options.compression = settings.compression == Compression::kBf16 ? federation::Compression::kBf16
                        : settings.compression == Compression::kInt8
                            ? federation::Compression::kInt8
                            : federation::Compression::kNone;
  return options;
}

}  // namespace fedshard::trainer
