// A histogram with fixed bounds, as Prometheus counts: cumulative over all time. Plain data, not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace fedshard::service {

class Histogram {
 public:
  // `bounds` ascending; a value belongs to the first bucket whose bound is not below it, the last
  // bucket has none.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
    ++counts_[bucket - bounds_.begin()];
    sum_ += value;
  }

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }  // Not cumulative.
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

}  // namespace fedshard::service
