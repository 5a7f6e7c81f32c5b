// Ctrl-C, TERM and HUP as something that commands can ask about and react to, instead of dying
// half-way.
#pragma once

#include <functional>

namespace fedshard::cli {

// Blocks SIGINT, SIGTERM and SIGHUP in the calling thread and all later ones, and takes them in a
// thread of its own. Call once, first thing in main.
void InstallInterrupts();
// Whether a signal has come.
bool Interrupted();
// Runs `hook` in the signal thread at the first signal (at once when it has already come). Empty
// clears it; when that returns, no hook is running.
void OnInterrupt(std::function<void()> hook);

}  // namespace fedshard::cli
