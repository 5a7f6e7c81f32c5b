// fedshard-trainer: one rank, from attaching to its worker to exiting.
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/version.h"
#include "worker/trainer/control_client.h"
#include "worker/trainer/engine_model.h"
#include "worker/trainer/round_participant.h"
#include "worker/trainer/settings.h"

namespace fedshard::trainer {
namespace {

constexpr char kHelp[] =
    R"(One rank of a job. Started by fedshard-worker, which passes FEDSHARD_TRAINER_TOKEN and
FEDSHARD_WORKER_PID; of no use alone.

Examples:
  fedshard-trainer --version
  FEDSHARD_TRAINER_TOKEN=... fedshard-trainer --socket /run/fedshard/trainers.sock
)";

// Pins the calling thread, and those it starts from now on, to `threads` of the CPUs that this
// process may use, from the one with index `first` on. The control threads stay free, so that a
// busy rank still is alive to its worker.
void PinTo(int first, int threads) {
  if (first < 0) return;
  cpu_set_t allowed, cpus;
  CPU_ZERO(&cpus);
  std::vector<int> usable;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) usable.push_back(cpu);
    }
  }
  for (int i = 0; i < threads && !usable.empty(); ++i) {
    CPU_SET(usable[(first + i) % usable.size()], &cpus);
  }
  if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) LogWarning("cannot pin to the given CPUs");
}

// Whether the worker that started this process still is its parent. The second of three ways to
// notice its death, beside the kernel's signal and the closed stream.
bool WorkerIsParent() {
  const char* pid = getenv("FEDSHARD_WORKER_PID");
  return pid == nullptr || getppid() == atoi(pid);
}

int64_t PeakMemoryMib() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

void Train(ControlClient& control) {
  const RankStart start = control.Attach();
  const auto settings = ParseSettings(start.spec);
  if (!settings.ok()) throw Failure("BAD_MODEL", std::string(settings.status().message()));
  const MeshCoordinates at = settings->mesh.CoordinatesOf(start.rank);
  LogInfo(absl::StrCat("job ", start.job, " rank ", start.rank, " of ", settings->mesh.world_size(),
                       ": group ", at.group, ", replica ", at.replica, ", shard ", at.shard));
  PinTo(start.cpu, settings->threads);

  ModelInputs inputs;
  inputs.settings = &*settings;
  inputs.start = start;
  inputs.group_keys = control.Keys(absl::StrCat("g", start.generation));
  inputs.federation_keys = control.Keys(absl::StrCat("f", start.federation_generation));
  inputs.on_connected = [&control](std::function<void()> abort) {
    control.SetAbort(std::move(abort));
  };
  const SystemClock clock;
  // The hook shares the process groups: let go of them before the model ends, also when an
  // exception unwinds, so that they are closed in order and by this thread.
  struct ClearAbort {
    ControlClient& control;
    ~ClearAbort() { control.SetAbort(nullptr); }
  };
  std::unique_ptr<RankModel> model;
  const ClearAbort clear{control};
  model = MakeEngineModel(inputs);
  RoundParticipant(*settings, start.rank, control, *model, clock).Run();
  LogInfo(absl::StrCat("done; peak memory ", PeakMemoryMib(), " MiB"));
}

// The exit code for what `Train` threw; tells the worker.
int Conclude(ControlClient& control, const std::exception& error) {
  // Being told to end explains whatever went wrong afterwards.
  if (const auto stopped = control.stopped()) return stopped->exit_code;
  if (const auto* stopped = dynamic_cast<const Stopped*>(&error)) return stopped->exit_code;
  LogError(error.what());
  if (const auto* failure = dynamic_cast<const Failure*>(&error)) {
    control.SendFailure(*failure);
    return kExitFailed;
  }
  const Failure failure = AsFailure(error);
  control.SendFailure(failure);
  return failure.reason == "COLLECTIVE_FAILED" ? kExitCollective : kExitFailed;
}

int Main(int argc, char** argv) {
  std::string socket;
  CLI::App app(kHelp, "fedshard-trainer");
  app.set_version_flag("--version", VersionText("fedshard-trainer"));
  app.add_option("--socket", socket, "The worker's unix socket")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const char* token = getenv("FEDSHARD_TRAINER_TOKEN");
  if (token == nullptr) {
    LogError("FEDSHARD_TRAINER_TOKEN is not set: trainers are started by fedshard-worker");
    return 2;
  }
  if (!WorkerIsParent()) {
    LogError("the worker that started this trainer is gone");
    return kExitLostWorker;
  }
  // Blocked in every thread; taken by the one below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  ControlClient control(socket, token, [](int exit_code) { _exit(exit_code); });
  // Detached: it waits in the kernel until the process ends.
  std::thread([signals, &control] {
    int signal = 0;
    sigwait(&signals, &signal);
    control.Stop(kExitStopped, absl::StrCat("signal ", signal));
  }).detach();

  int exit_code = kExitDone;
  try {
    Train(control);
  } catch (const std::exception& error) {
    exit_code = Conclude(control, error);
  }
  if (!control.stopped()) control.Finish();
  // The model and its process groups are gone. Nothing that is left needs destructors, and a signal
  // may arrive any time.
  _exit(exit_code);
}

}  // namespace
}  // namespace fedshard::trainer

int main(int argc, char** argv) { return fedshard::trainer::Main(argc, argv); }
