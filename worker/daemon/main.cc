// fedshard-worker: flags, and waiting for a signal.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/duration.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/utf8.h"
#include "common/version.h"
#include "worker/daemon/daemon.h"

namespace fedshard::daemon {
namespace {

constexpr char kHelp[] =
    R"(Runs the trainers of one node.

Examples:
  fedshard-worker --coordinator 10.0.0.1:7070 --node-id node-1 --slots 8 \
      --data-address 10.0.0.2 --log-directory /var/log/fedshard
  fedshard-worker --coordinator 127.0.0.1:7070 --node-id a --slots 4 --label topology=block0/rack1/a
)";

constexpr int kExitUsage = 2, kExitRefused = 4, kExitUnreachable = 5;

int Usage(const std::string& message) {
  std::cerr << "fedshard-worker: " << message << "\n";
  return kExitUsage;
}

int ExitCodeOf(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) ? kExitUnreachable : kExitRefused;
}

// "HOST:PORT" with a port in range.
bool IsAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  char* end = nullptr;
  const long port = strtol(text.c_str() + colon + 1, &end, 10);
  return *end == 0 && end != text.c_str() + colon + 1 && port >= 1 && port <= 65535;
}

int Run(DaemonOptions options, bool made_run_directory) {
  // Signals are taken by sigtimedwait below, in this thread alone.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  static const SystemClock clock;
  int exit_code = 0;
  {
    const std::string run_directory = options.run_directory;
    auto daemon = Daemon::Start(std::move(options), clock);
    if (!daemon.ok()) {
      LogError(std::string(daemon.status().message()));
      exit_code = 1;
    }
    while (daemon.ok()) {
      const timespec soon = {0, 100'000'000};
      if (sigtimedwait(&signals, nullptr, &soon) > 0) {
        LogInfo("stopping on a signal");
        break;
      }
      if (const auto fatal = (*daemon)->WaitForFatal(0)) {
        LogError(std::string(fatal->message()));
        exit_code = ExitCodeOf(*fatal);
        break;
      }
    }
    std::error_code ignored;
    if (daemon.ok()) {
      daemon->reset();
      std::filesystem::remove(run_directory + "/trainers.sock", ignored);
    }
    if (made_run_directory) std::filesystem::remove(run_directory, ignored);
  }
  return exit_code;
}

int Main(int argc, char** argv) {
  DaemonOptions options;
  std::string trainer_timeout = "10s", connect_timeout = "60s";
  std::vector<std::string> labels;
  CLI::App app(kHelp, "fedshard-worker");
  app.set_version_flag("--version", VersionText("fedshard-worker"));
  app.add_option("--coordinator", options.coordinator, "HOST:PORT of the coordinator")
      ->envname("FEDSHARD_COORDINATOR")
      ->required();
  app.add_option("--node-id", options.node_id, "Name of this node: letters, digits, hyphens")
      ->required();
  app.add_option("--slots", options.slots,
                 "Ranks that this node can run: its GPUs, or shares of its CPUs")
      ->required();
  app.add_option("--data-address", options.data_address,
                 "Address of this node for the ranks of other nodes [127.0.0.1]");
  app.add_option("--log-directory", options.log_directory, "Where JOB/rank-N.log go")->required();
  app.add_option("--label", labels, "key=value; topology=block/rack/host guides placement");
  app.add_option("--run-directory", options.run_directory,
                 "For the trainers' socket [a new one in /tmp]");
  app.add_option("--trainer", options.trainer, "fedshard-trainer [beside this program]");
  app.add_option("--trainer-timeout", trainer_timeout,
                 "Kill a trainer that is silent for so long [10s]");
  app.add_option("--connect-timeout", connect_timeout,
                 "Give up on the first registration after this [60s]");
  app.add_flag("--pin", options.pin, "Pin each trainer to CPUs of its own");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }

  if (!IsAddress(options.coordinator)) {
    return Usage(absl::StrCat("--coordinator: \"", options.coordinator, "\" is not HOST:PORT"));
  }
  if (const absl::Status id = ValidateId("--node-id", options.node_id); !id.ok()) {
    return Usage(std::string(id.message()));
  }
  if (options.slots < 1 || options.slots > 1024) return Usage("--slots: must be 1 to 1024");
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Usage(absl::StrCat("--label: \"", label, "\" is not key=value"));
    }
    if (ValidUtf8(label) != label) {
      return Usage(absl::StrCat("--label: \"", label, "\" is not UTF-8"));
    }
    options.labels.emplace_back(label.substr(0, equals), label.substr(equals + 1));
  }
  for (const auto& [text, flag, target] :
       {std::tuple{&trainer_timeout, "--trainer-timeout", &options.trainer_timeout_us},
        std::tuple{&connect_timeout, "--connect-timeout", &options.connect_timeout_us}}) {
    const auto duration = ParseDuration(*text);
    if (!duration.ok()) return Usage(absl::StrCat(flag, ": ", duration.status().message()));
    *target = *duration;
  }
  // Trainers say every second that they live.
  if (options.trainer_timeout_us < 2'000'000) return Usage("--trainer-timeout: must be 2s or more");
  std::error_code error;
  if (options.trainer.empty()) {
    options.trainer =
        (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "fedshard-trainer")
            .string();
  }
  if (access(options.trainer.c_str(), X_OK) != 0) {
    return Usage(absl::StrCat("--trainer: cannot execute ", options.trainer));
  }
  std::filesystem::create_directories(options.log_directory, error);
  if (error)
    return Usage(absl::StrCat("--log-directory: ", options.log_directory, ": ", error.message()));
  options.log_directory = std::filesystem::absolute(options.log_directory).string();
  bool made_run_directory = false;
  if (options.run_directory.empty()) {
    std::string path = "/tmp/fedshard-worker-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return Usage("--run-directory: cannot make one in /tmp");
    options.run_directory = path;
    made_run_directory = true;
  } else if (options.run_directory.size() > 80) {  // A socket's path has room for 108 bytes.
    return Usage("--run-directory: longer than 80 characters");
  } else {
    const bool made = std::filesystem::create_directories(options.run_directory, error);
    if (error)
      return Usage(absl::StrCat("--run-directory: ", options.run_directory, ": ", error.message()));
    // One that was there keeps its mode: it may have other uses.
    if (made) chmod(options.run_directory.c_str(), 0700);
  }
  return Run(std::move(options), made_run_directory);
}

}  // namespace
}  // namespace fedshard::daemon

int main(int argc, char** argv) { return fedshard::daemon::Main(argc, argv); }
