// Commands that run a cluster on this machine.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "cli/job_file.h"
#include "cli/local_cluster.h"
#include "cli/local_state.h"
#include "cli/summary.h"
#include "common/spec/validate.h"

namespace fedshard::cli {
namespace {

namespace fs = std::filesystem;

// The folder of a run: kept where the user said, else a temporary one.
class RunFolder {
 public:
  explicit RunFolder(const std::string& keep) : kept_(!keep.empty()) {
    if (kept_) {
      path_ = fs::absolute(keep).lexically_normal().string();
    } else {
      std::string path = (fs::temp_directory_path() / "fedshard-local-XXXXXX").string();
      if (mkdtemp(path.data()) != nullptr) path_ = path;
    }
  }
  ~RunFolder() {
    std::error_code ignored;
    if (!kept_ && !path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  bool kept() const { return kept_; }

 private:
  bool kept_;
  std::string path_;
};

int Error(int exit_code, const std::string& message) {
  std::cerr << message << "\n";
  return exit_code;
}

// After an interrupt: cancel, and give the trainers a moment to end in order. Stopping the cluster
// does the rest.
void CancelQuietly(const std::string& address, const std::string& id) {
  Client client(address);
  v1::Job job;
  if (!client.CancelJob(id, "interrupted", job).ok()) return;
  for (int i = 0; i < 50 && !HasEnded(job.state()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (!client.GetJob(id, job).ok()) return;
  }
}

// Runs the job on the cluster; its last state in `last`.
Outcome RunJob(const LocalCluster& cluster, const v1::JobSpec& spec, v1::Job& last) {
  Client client(cluster.address());
  Outcome outcome = client.Submit(spec, /*validate_only=*/false, last);
  if (!outcome.ok()) return outcome;
  outcome = FollowJob(client, spec.id(), /*show=*/true, last);
  if (Interrupted()) CancelQuietly(cluster.address(), spec.id());
  return outcome;
}

void KeepSteps(const LocalCluster& cluster, const v1::JobSpec& spec, const RunFolder& folder) {
  std::error_code ignored;
  fs::copy_file(cluster.StepsFile(spec.id()), folder.path() + "/steps.jsonl",
                fs::copy_options::overwrite_existing, ignored);
}

}  // namespace

int RunLocalRun(const LocalRunOptions& options) {
  const auto spec = ReadJobFile(options.file);
  if (!spec.ok()) return Error(kExitUsage, std::string(spec.status().message()));
  if (const absl::Status data = CheckData(*spec); !data.ok()) {
    return Error(kExitUsage, std::string(data.message()));
  }
  const int64_t slots = int64_t{options.nodes} * options.slots;
  if (WorldSize(*spec) > slots) {
    return Error(kExitUsage,
                 absl::StrCat(options.file, ": mesh: ", WorldSize(*spec), " ranks do not fit ",
                              options.nodes, " nodes of ", options.slots,
                              " slots; give more with --nodes or --slots"));
  }
  const RunFolder folder(options.keep);
  if (folder.path().empty()) return Error(kExitFailed, "cannot make a temporary folder");
  v1::Job job;
  Outcome outcome;
  {
    auto cluster = LocalCluster::Start({options.nodes, options.slots, folder.path()}, Interrupted);
    if (!cluster.ok()) {
      return Interrupted() ? kExitInterrupted
                           : Error(kExitFailed, std::string(cluster.status().message()));
    }
    outcome = RunJob(**cluster, *spec, job);
    if (folder.kept()) KeepSteps(**cluster, *spec, folder);
  }
  if (Interrupted()) return Error(kExitInterrupted, "interrupted; nothing is left running");
  if (!outcome.ok()) return Error(outcome.exit_code, absl::StrCat("fedshard: ", outcome.error));
  if (options.json) {
    std::cout << SummaryJson(job, folder.kept() ? folder.path() : "").dump() << "\n";
  } else if (job.state() == v1::JOB_STATE_COMPLETED) {
    std::cout << SummaryText(job);
  }
  if (job.state() == v1::JOB_STATE_COMPLETED) return kExitDone;
  return Error(kExitFailed,
               absl::StrCat(StateName(job.state()), " ", job.reason(), ": ", job.message()));
}

int RunLocalUp(const LocalUpOptions& options) {
  if (const auto running = ReadLocalState()) {
    return Error(kExitRefused, absl::StrCat("a local cluster is up already, at ", running->address,
                                            "; fedshard local down stops it"));
  }
  if (!options.foreground) {
    // The same again, in a process that outlives this one.
    Subprocess::Options process;
    process.argv = {BinaryDirectory() + "/fedshard",
                    "local",
                    "up",
                    "--foreground",
                    "--nodes",
                    absl::StrCat(options.nodes),
                    "--slots",
                    absl::StrCat(options.slots)};
    if (!options.directory.empty()) {
      process.argv.insert(process.argv.end(),
                          {"--directory", fs::absolute(options.directory).string()});
    }
    process.out = process.err = Subprocess::Output::kDiscard;
    auto holder = Subprocess::Start(process);
    if (!holder.ok()) return Error(kExitFailed, std::string(holder.status().message()));
    std::optional<LocalState> state;
    while (!(state = ReadLocalState())) {
      if (Interrupted()) return kExitInterrupted;
      if ((*holder)->WaitFor(50'000)) {
        return Error(kExitFailed,
                     "the local cluster did not start; try fedshard local up --foreground");
      }
    }
    (*holder)->Detach();
    std::cout << "coordinator " << state->address << "\nmetrics     http://"
              << state->metrics_address << "/metrics\nlogs        " << state->directory << "\n";
    std::cerr << "Next: fedshard submit JOB.yaml --watch, fedshard local down\n";
    return kExitDone;
  }
  const RunFolder folder(options.directory);
  if (folder.path().empty()) return Error(kExitFailed, "cannot make a temporary folder");
  auto cluster = LocalCluster::Start({options.nodes, options.slots, folder.path()}, Interrupted);
  if (!cluster.ok()) return Error(kExitFailed, std::string(cluster.status().message()));
  const LocalState state{(*cluster)->address(), (*cluster)->metrics_address(), folder.path(),
                         getpid(), StartTicks(getpid())};
  if (const absl::Status written = WriteLocalState(state); !written.ok()) {
    return Error(kExitFailed, std::string(written.message()));
  }
  std::cerr << "local cluster at " << state.address << "; Ctrl-C or fedshard local down stops it\n";
  while (!Interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  cluster->reset();
  RemoveLocalState();
  return kExitDone;
}

int RunLocalDown() {
  const auto state = ReadLocalState();
  if (!state) return Error(kExitNotFound, "no local cluster is up");
  kill(state->pid, SIGTERM);
  // Workers give trainers 2 s, and are given 10 s themselves.
  for (int i = 0; i < 300; ++i) {
    if (StartTicks(state->pid) != state->start_ticks) {
      RemoveLocalState();
      std::cout << "stopped\n";
      return kExitDone;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return Error(kExitFailed, absl::StrCat("process ", state->pid, " does not stop"));
}

}  // namespace fedshard::cli
