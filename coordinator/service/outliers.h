// Finds steps whose loss or gradient norm stands far above the steps before it. Only for people:
// nothing is decided by it. Owned by the service; used on the loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/effects.h"
#include "coordinator/service/node_messages.h"

namespace fedshard::service {

// The last values of one quantity. A value is an outlier when it exceeds the window's median by
// more than kDeviations scaled median absolute deviations (1.4826 MAD, which is the standard
// deviation of normal values) and by more than a tenth of the median: a curve that hardly moves has
// a MAD near zero.
class OutlierWindow {
 public:
  static constexpr size_t kWindow = 64;
  static constexpr size_t kWarmUp = 16;  // No verdict on fewer values.
  static constexpr double kDeviations = 8;

  // Adds a value; the window's median before it when the value is an outlier, else a negative
  // number. Values that are not finite are ignored.
  double Add(double value);

 private:
  std::deque<double> values_;
};

class Outliers {
 public:
  // LOSS_SPIKE and GRADIENT_NORM_OUTLIER events for what is unusual among `steps` of one group. The
  // steps of one excursion make one event.
  std::vector<core::Event> Look(const core::JobId& job, int32_t group,
                                const std::vector<StepRecord>& steps);
  void Forget(const core::JobId& job);

 private:
  struct Watched {
    OutlierWindow window;
    bool above = false;  // The last value was an outlier.
  };

  std::map<core::JobId, std::map<std::pair<int32_t, std::string>, Watched>> jobs_;
};

}  // namespace fedshard::service
