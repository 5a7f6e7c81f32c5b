// fedshard-coordinator: wiring of flags, servers and the service loop.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/duration.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/version.h"
#include "coordinator/metrics/http_server.h"
#include "coordinator/rpc/listen_address.h"
#include "coordinator/rpc/server.h"
#include "coordinator/service/service.h"
#include "coordinator/storage/memory_journal.h"

namespace fedshard {
namespace {

// As the CLI documents them.
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitRefused = 4;
constexpr int kExitAddressInUse = 5;

constexpr std::chrono::milliseconds kShutdownGrace{3000};

constexpr char kExamples[] =
    "Examples:\n"
    "  # A coordinator on this machine, on ports of the system's choice\n"
    "  fedshard-coordinator --data-directory /var/lib/fedshard --address-file /run/fedshard.json\n"
    "  # For a cluster on a trusted network\n"
    "  fedshard-coordinator --data-directory /var/lib/fedshard --listen 0.0.0.0:7070 --insecure\n";

struct Flags {
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen = "127.0.0.1:0";
  std::string data_directory;
  std::string address_file;
  std::string heartbeat_interval = "2s";
  std::string node_lost_after = "10s";
  std::string stop_grace = "2s";
  bool insecure = false;
  bool reflection = false;
};

struct Timing {
  int64_t heartbeat_interval_us = 0;
  int64_t node_lost_after_us = 0;
  int64_t stop_grace_us = 0;
};

int Fail(int code, const std::string& message) {
  std::cerr << "fedshard-coordinator: " << message << "\n";
  return code;
}

void Declare(CLI::App& app, Flags& flags) {
  app.add_option("--data-directory", flags.data_directory,
                 "Folder for what the coordinator writes; made when missing")
      ->required();
  app.add_option("--listen", flags.listen, "HOST:PORT for gRPC; port 0 = any")
      ->capture_default_str();
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "ADDRESS:PORT for the HTTP pages; port 0 = any")
      ->capture_default_str();
  app.add_option("--address-file", flags.address_file,
                 "File that gets both addresses as JSON once they listen");
  app.add_option("--heartbeat-interval", flags.heartbeat_interval,
                 "How often workers report that they live")
      ->capture_default_str();
  app.add_option("--node-lost-after", flags.node_lost_after,
                 "A node that is silent for longer is lost")
      ->capture_default_str();
  app.add_option("--stop-grace", flags.stop_grace, "From TERM to KILL when ranks are stopped")
      ->capture_default_str();
  app.add_flag(
      "--insecure", flags.insecure,
      "Allow addresses other than loopback although nothing is encrypted or authenticated");
  app.add_flag("--reflection", flags.reflection, "Serve gRPC reflection");
}

absl::Status ParseTiming(const Flags& flags, Timing& timing) {
  const auto parse = [](const char* flag, const std::string& text, int64_t& us) {
    const absl::StatusOr<int64_t> parsed = ParseDuration(text);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", parsed.status().message()));
    }
    us = *parsed;
    return absl::OkStatus();
  };
  absl::Status status =
      parse("--heartbeat-interval", flags.heartbeat_interval, timing.heartbeat_interval_us);
  status.Update(parse("--node-lost-after", flags.node_lost_after, timing.node_lost_after_us));
  status.Update(parse("--stop-grace", flags.stop_grace, timing.stop_grace_us));
  if (!status.ok()) return status;
  if (timing.heartbeat_interval_us < 1000 || timing.heartbeat_interval_us > 3'600'000'000) {
    return absl::InvalidArgumentError("--heartbeat-interval: must be 1ms to 1h");
  }
  if (timing.node_lost_after_us < 2 * timing.heartbeat_interval_us) {
    return absl::InvalidArgumentError(
        "--node-lost-after: must be at least twice the heartbeat interval");
  }
  if (timing.stop_grace_us > 3'600'000'000) {
    return absl::InvalidArgumentError("--stop-grace: must be at most 1h");
  }
  return absl::OkStatus();
}

absl::Status CheckListen(const char* flag, const std::string& text, bool insecure) {
  const auto address = rpc::ParseListenAddress(text);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", address.status().message()));
  }
  if (address->IsLoopback() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", text,
      " is reachable from other machines, and nothing is encrypted or authenticated; add "
      "--insecure if the network is trusted"));
}

// Holds the lock on the data directory as long as it lives.
class DirectoryLock {
 public:
  ~DirectoryLock() {
    if (fd_ >= 0) close(fd_);
  }
  // FAILED_PRECONDITION when another coordinator holds it.
  absl::Status Take(const std::string& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("cannot make ", directory, ": ", error.message()));
    }
    const std::string path = directory + "/coordinator.lock";
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) {
      return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", strerror(errno)));
    }
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the data directory ", directory,
                                                      " is in use by another coordinator (", path,
                                                      " is locked)"));
  }

 private:
  int fd_ = -1;
};

// Written whole or not at all: readers wait for the file to appear.
absl::Status WriteAddressFile(const std::string& path, const std::string& grpc_address,
                              const std::string& metrics_address) {
  const nlohmann::ordered_json content = {
      {"grpc", grpc_address}, {"metrics", metrics_address}, {"pid", getpid()}};
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  std::ofstream file(temporary, std::ios::trunc);
  file << content.dump() << "\n";
  file.close();
  if (!file || rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

service::ServiceOptions ServiceOptionsOf(const Flags& flags, const Timing& timing) {
  service::ServiceOptions options;
  options.core.node_lost_after_us = timing.node_lost_after_us;
  options.core.stop_grace_ms = static_cast<int32_t>(timing.stop_grace_us / 1000);
  options.sessions.coordinator_incarnation = NewIncarnation();
  options.sessions.heartbeat_interval_ms =
      static_cast<int32_t>(timing.heartbeat_interval_us / 1000);
  options.data_directory = flags.data_directory;
  return options;
}

// Blocks TERM and INT in this thread and all it starts, and gives a descriptor to read them from.
int BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

void WaitForSignal(int fd) {
  signalfd_siginfo info;
  while (read(fd, &info, sizeof info) < 0 && errno == EINTR) {
  }
  LogInfo(absl::StrCat("stopping: ", strsignal(static_cast<int>(info.ssi_signo))));
}

int ExitCodeOf(const absl::Status& status) {
  return status.code() == absl::StatusCode::kAlreadyExists ? kExitAddressInUse : kExitFailed;
}

int Serve(const Flags& flags, const Timing& timing, int signals) {
  DirectoryLock lock;
  if (const absl::Status status = lock.Take(flags.data_directory); !status.ok()) {
    return Fail(status.code() == absl::StatusCode::kFailedPrecondition ? kExitRefused : kExitFailed,
                std::string(status.message()));
  }
  const SystemClock clock;
  service::Service service(ServiceOptionsOf(flags, timing), &clock,
                           std::make_unique<storage::MemoryJournal>());
  rpc::Server server({flags.listen, flags.reflection}, &service, &clock);
  metrics::HttpServerOptions http_options;
  http_options.listen = flags.metrics_listen;
  metrics::HttpServer http(http_options, &service);
  service.Start();
  if (const absl::Status status = server.Start(); !status.ok()) {
    return Fail(ExitCodeOf(status), std::string(status.message()));
  }
  if (absl::Status status = http.Start(); !status.ok()) {
    const absl::Status probe = rpc::ProbeAddress(*rpc::ParseListenAddress(flags.metrics_listen));
    if (!probe.ok()) status = probe;
    return Fail(ExitCodeOf(status), std::string(status.message()));
  }
  LogInfo(absl::StrCat("fedshard-coordinator ", ProjectVersion(), " serves gRPC on ",
                       server.address(), " and HTTP on ", http.address()));
  if (!flags.address_file.empty()) {
    const absl::Status status =
        WriteAddressFile(flags.address_file, server.address(), http.address());
    if (!status.ok()) return Fail(kExitFailed, std::string(status.message()));
  }

  WaitForSignal(signals);
  // gRPC's shutdown waits for open streams, so they are ended first.
  server.Drain();
  service.Stop();
  server.Stop(kShutdownGrace);
  http.Stop();
  if (!flags.address_file.empty()) unlink(flags.address_file.c_str());
  LogInfo("stopped");
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(std::string(kExamples) +
               "\nThe coordinator of a fedshard cluster: nodes, jobs, rounds and metrics.");
  app.set_version_flag("--version", VersionText("fedshard-coordinator"));
  Declare(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  Timing timing;
  absl::Status status = ParseTiming(flags, timing);
  status.Update(CheckListen("--listen", flags.listen, flags.insecure));
  status.Update(CheckListen("--metrics-listen", flags.metrics_listen, flags.insecure));
  if (!status.ok()) return Fail(kExitUsage, std::string(status.message()));
  const int signals = BlockSignals();
  if (signals < 0) return Fail(kExitFailed, absl::StrCat("signalfd: ", strerror(errno)));
  const int code = Serve(flags, timing, signals);
  close(signals);
  return code;
}

}  // namespace
}  // namespace fedshard

int main(int argc, char** argv) { return fedshard::Main(argc, argv); }
