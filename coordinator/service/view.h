// What queries see: the core's state and the live numbers, at one moment. Valid on the loop thread,
// inside the callback.
#pragma once

#include "common/clock.h"
#include "coordinator/core/state.h"
#include "coordinator/service/telemetry.h"

namespace fedshard::service {

struct View {
  const core::State& state;
  const Telemetry& telemetry;
  Instant now;
};

}  // namespace fedshard::service
