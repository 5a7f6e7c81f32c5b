#include "cli/local_cluster.h"

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "common/status_macros.h"

namespace fedshard::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kStartTimeout = seconds(60);
constexpr int64_t kStopGraceUs = 10'000'000;  // Workers give their trainers 2 s.

std::string LastLine(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) last = line;
  return last;
}

// Looks until `done` says so. CANCELLED, or DEADLINE_EXCEEDED with what was waited for.
absl::Status Await(const std::function<absl::StatusOr<bool>()>& done,
                   const std::function<bool()>& canceled, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (true) {
    ASSIGN_OR_RETURN(const bool is_done, done());
    if (is_done) return absl::OkStatus();
    if (canceled()) return absl::CancelledError("interrupted");
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(what, " took longer than 60 s"));
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
}

}  // namespace

std::string BinaryDirectory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    const LocalClusterOptions& options, const std::function<bool()>& canceled) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options));
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(options.directory, ": ", error.message()));
  }
  std::string run = "/tmp/fedshard-run-XXXXXX";
  if (mkdtemp(run.data()) == nullptr) return absl::InternalError("cannot make a folder in /tmp");
  cluster->run_directory_ = run;
  RETURN_IF_ERROR(cluster->StartCoordinator(canceled));
  for (int node = 0; node < options.nodes; ++node) RETURN_IF_ERROR(cluster->StartWorker(node));
  RETURN_IF_ERROR(cluster->AwaitWorkers(canceled));
  return cluster;
}

LocalCluster::~LocalCluster() {
  // All at once, then each to its end; the coordinator last, so that it hears of the exits.
  for (const auto& worker : workers_) worker->Signal(SIGTERM);
  for (const auto& worker : workers_) worker->Stop(kStopGraceUs);
  workers_.clear();
  if (coordinator_) coordinator_->Stop(kStopGraceUs);
  coordinator_.reset();
  std::error_code ignored;
  if (!run_directory_.empty()) std::filesystem::remove_all(run_directory_, ignored);
}

std::string LocalCluster::StepsFile(const std::string& job) const {
  return absl::StrCat(options_.directory, "/coordinator/jobs/", job, "/steps.jsonl");
}

absl::Status LocalCluster::StartCoordinator(const std::function<bool()>& canceled) {
  const std::string address_file = run_directory_ + "/address.json";
  const std::string log = options_.directory + "/coordinator.log";
  Subprocess::Options options;
  options.argv = {BinaryDirectory() + "/fedshard-coordinator",
                  "--listen",
                  "127.0.0.1:0",
                  "--metrics-listen",
                  "127.0.0.1:0",
                  "--data-directory",
                  options_.directory + "/coordinator",
                  "--address-file",
                  address_file};
  options.out = Subprocess::Output::kFile;
  options.out_file = log;
  options.err_to_out = true;
  options.die_with_parent = true;
  ASSIGN_OR_RETURN(coordinator_, Subprocess::Start(options));
  RETURN_IF_ERROR(Await(
      [&]() -> absl::StatusOr<bool> {
        if (coordinator_->Poll()) {
          return absl::InternalError(absl::StrCat("the coordinator ended: ", LastLine(log)));
        }
        return std::filesystem::exists(address_file);
      },
      canceled, "starting the coordinator"));
  std::ifstream file(address_file);
  const auto addresses = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!addresses.is_object()) return absl::InternalError(absl::StrCat(address_file, " is garbled"));
  address_ = addresses.value("grpc", "");
  metrics_address_ = addresses.value("metrics", "");
  return absl::OkStatus();
}

absl::Status LocalCluster::StartWorker(int node) {
  const std::string run = absl::StrCat(run_directory_, "/", node);
  Subprocess::Options options;
  options.argv = {BinaryDirectory() + "/fedshard-worker",
                  "--coordinator",
                  address_,
                  "--node-id",
                  absl::StrCat("node-", node),
                  "--slots",
                  absl::StrCat(options_.slots),
                  "--data-address",
                  "127.0.0.1",
                  "--label",
                  absl::StrCat("topology=local/node-", node),
                  "--log-directory",
                  options_.directory + "/trainers",
                  "--run-directory",
                  run};
  options.out = Subprocess::Output::kFile;
  options.out_file = absl::StrCat(options_.directory, "/worker-", node, ".log");
  options.err_to_out = true;
  options.die_with_parent = true;
  ASSIGN_OR_RETURN(auto worker, Subprocess::Start(options));
  workers_.push_back(std::move(worker));
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitWorkers(const std::function<bool()>& canceled) {
  Client client(address_);
  return Await(
      [&]() -> absl::StatusOr<bool> {
        for (size_t i = 0; i < workers_.size(); ++i) {
          if (workers_[i]->Poll()) {
            return absl::InternalError(absl::StrCat(
                "worker ", i,
                " ended: ", LastLine(absl::StrCat(options_.directory, "/worker-", i, ".log"))));
          }
        }
        std::vector<v1::Node> nodes;
        const Outcome outcome = client.ListNodes(nodes);
        return outcome.ok() && nodes.size() == workers_.size();
      },
      canceled, "starting the workers");
}

}  // namespace fedshard::cli
