#include "coordinator/service/outliers.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace fedshard::service {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double OutlierWindow::Add(double value) {
  if (!std::isfinite(value)) return -1;
  double verdict = -1;
  if (values_.size() >= kWarmUp) {
    const double median = Median({values_.begin(), values_.end()});
    std::vector<double> distances;
    for (const double other : values_) distances.push_back(std::abs(other - median));
    const double bound = std::max(kDeviations * 1.4826 * Median(distances), 0.1 * median);
    if (value > median + bound) verdict = median;
  }
  values_.push_back(value);
  if (values_.size() > kWindow) values_.pop_front();
  return verdict;
}

std::vector<core::Event> Outliers::Look(const core::JobId& job, int32_t group,
                                        const std::vector<StepRecord>& steps) {
  std::vector<core::Event> events;
  const auto look = [&](const char* reason, const char* name, int64_t step, double value) {
    Watched& watched = jobs_[job][{group, reason}];
    const double median = watched.window.Add(value);
    if (median >= 0 && !watched.above) {
      events.push_back({job, "", reason,
                        absl::StrFormat("group %d, step %d: %s %.4g, median of the last steps %.4g",
                                        group, step, name, value, median)});
    }
    watched.above = median >= 0;
  };
  for (const StepRecord& step : steps) {
    if (step.skipped) continue;
    look("LOSS_SPIKE", "loss", step.step, step.loss);
    look("GRADIENT_NORM_OUTLIER", "gradient norm", step.step, step.gradient_norm);
  }
  return events;
}

void Outliers::Forget(const core::JobId& job) { jobs_.erase(job); }

}  // namespace fedshard::service
