// What a rank's settings mean to the engine and the averager. Stateless.
#pragma once

#include "worker/engine/engine.h"
#include "worker/federation/averager.h"
#include "worker/trainer/settings.h"

namespace fedshard::trainer {

// `gpu`: the rank's, when the settings say CUDA.
engine::EngineOptions EngineOptionsFrom(const Settings& settings, int gpu);
federation::AveragerOptions AveragerOptionsFrom(const FederationSettings& settings);

}  // namespace fedshard::trainer
