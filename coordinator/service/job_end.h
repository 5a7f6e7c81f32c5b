// When a job is over for those who watch it. Pure.
#pragma once

#include "coordinator/core/state.h"

namespace fedshard::service {

// Ended, and its processes are gone or were given up as unkillable in time: nothing more will
// happen to it.
inline bool HasEnded(const core::Job& job) {
  if (!core::IsTerminal(job.state)) return false;
  const auto stopped = job.conditions.find("Stopped");
  return stopped != job.conditions.end() &&
         (stopped->second.active || stopped->second.reason == "STOP_OVERDUE");
}

}  // namespace fedshard::service
