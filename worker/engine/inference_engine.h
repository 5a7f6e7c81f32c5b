// One rank's share of a sharded Llama that is only evaluated: the engine without gradients,
// optimizer and their memory. Owned and called by one thread. The Comm must outlive it.
//
// Memory: the fp32 shard; with several shards the gathered embedding, head and two blocks besides.
// Collective over the shard group: every rank makes the same calls. Errors: CommError from the
// collectives; c10::Error for programming errors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "common/model_config.h"
#include "worker/collective/comm.h"
#include "worker/engine/engine.h"
#include "worker/engine/key_value_cache.h"

namespace fedshard::engine {

struct InferenceOptions {
  ModelConfig model;
  int64_t max_length = 0;  // Tokens that a sequence may have.
  int64_t loss_chunk_tokens = 256;
  bool poison_buffers = false;  // As in EngineOptions.
  bool cuda = false;
  int gpu = 0;
};

class InferenceEngine {
 public:
  InferenceEngine(const InferenceOptions& options, collective::Comm& shard);
  ~InferenceEngine();

  // This rank's part of the parameters. Not collective. Throws what `fill` throws.
  void Load(const FillFunction& fill);

  // tokens: int64 [B, 2..max_length + 1]; ranks may pass different ones, and different B.
  LossSum Evaluate(const at::Tensor& tokens);

  // Logits [V] (fp32, CPU) after the last of `tokens`, int64 [1..max_length]: the plain way, which
  // Decode must match. Every rank passes the same tokens.
  at::Tensor NextTokenLogits(const at::Tensor& tokens);

  // Room for `batch` sequences of up to `capacity` <= max_length tokens.
  KeyValueCache MakeCache(int64_t batch, int64_t capacity) const;
  // Appends tokens, int64 [batch, n], to the sequences of `cache`. Returns the logits [batch, V]
  // (fp32, CPU) after the last of them. Every rank passes the same number of tokens. After an error
  // the cache is undefined.
  at::Tensor Decode(const at::Tensor& tokens, KeyValueCache& cache);

  int64_t parameters() const;  // Logical.

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fedshard::engine
