#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>
#include <thread>
#include <utility>

#include "common/mutex.h"

namespace fedshard::cli {
namespace {

std::atomic<bool> interrupted{false};

struct Hook {
  Mutex mu;
  std::function<void()> run GUARDED_BY(mu);
};

Hook& TheHook() {
  static auto* hook = new Hook;  // Never destroyed: the signal thread may outlive main.
  return *hook;
}

void RunHook() {
  Hook& hook = TheHook();
  MutexLock lock(hook.mu);
  if (hook.run) hook.run();
}

}  // namespace

void InstallInterrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // A closed terminal must not leave folders behind either; nohup means what it says.
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  std::thread([signals] {
    while (true) {
      int signal = 0;
      if (sigwait(&signals, &signal) != 0) continue;
      interrupted = true;
      RunHook();
    }
  }).detach();
}

bool Interrupted() { return interrupted; }

void OnInterrupt(std::function<void()> hook) {
  {
    MutexLock lock(TheHook().mu);
    TheHook().run = std::move(hook);
  }
  if (interrupted) RunHook();
}

}  // namespace fedshard::cli
