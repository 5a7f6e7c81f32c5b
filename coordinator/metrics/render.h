// The metrics page: every family built anew from a snapshot, so that what has departed is gone.
// Pure.
#pragma once

#include <string>

#include "coordinator/metrics/snapshot.h"

namespace fedshard::metrics {

// Prometheus text format 0.0.4.
std::string Render(const Snapshot& snapshot);

}  // namespace fedshard::metrics
