// Keys and values of tokens seen before, so that the next ones cost one row of attention each.
// Plain data, owned by who generates text; made by InferenceEngine::MakeCache. All sequences of a
// cache have the same length.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fedshard::engine {

// Of one block. Tokens [0, length) are there; new ones are written behind them.
struct BlockCache {
  at::Tensor keys;    // [batch, key_value_heads, capacity, head_dim], rotated by their positions.
  at::Tensor values;  // The same shape.
  int64_t length = 0;
};

struct KeyValueCache {
  at::Tensor keys;    // [layers, batch, key_value_heads, capacity, head_dim]
  at::Tensor values;  // The same shape.
  int64_t length = 0;

  int64_t batch() const { return keys.size(1); }
  int64_t capacity() const { return keys.size(3); }
  BlockCache Of(int block) const {
    return {keys.select(0, block), values.select(0, block), length};
  }
};

}  // namespace fedshard::engine
