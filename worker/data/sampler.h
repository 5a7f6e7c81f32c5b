// Which window of the token file sample i is: a pure function of (file length, T, seed, order, i).
#pragma once

#include <cstdint>

namespace fedshard::data {

enum class Order { kShuffled, kSequential };

class Sampler {
 public:
  // There are (tokens - 1) / T windows of T + 1 tokens; must be at least 1.
  Sampler(int64_t tokens, int64_t sequence_length, uint64_t seed, Order order);

  int64_t windows() const { return windows_; }
  // First token of sample `index` (0, 1, 2, ... without end). Epoch e = index / windows; each epoch
  // visits every window once, shuffled: in an order given by (seed, e).
  int64_t FirstToken(int64_t index) const;

 private:
  int64_t windows_;
  int64_t sequence_length_;
  uint64_t seed_;
  Order order_;
};

}  // namespace fedshard::data
