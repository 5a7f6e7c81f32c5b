#include "worker/inference/rank.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/str_cat.h"
#include "worker/collective/group_factory.h"
#include "worker/data/token_file.h"
#include "worker/engine/inference_engine.h"
#include "worker/inference/evaluate.h"
#include "worker/inference/exit_codes.h"
#include "worker/inference/generate.h"
#include "worker/inference/model_source.h"

namespace fedshard::inference {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr auto kProgressInterval = std::chrono::milliseconds(500);

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// An absl::Status on its way through code that throws.
class StatusError : public std::runtime_error {
 public:
  explicit StatusError(const absl::Status& status)
      : std::runtime_error(std::string(status.message())), status_(status) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}

void PrepareProcess(const RankTask& task) {
  at::set_num_threads(task.threads);
  at::set_num_interop_threads(1);
  // glibc maps tensors above 32 MiB afresh at each operation, and page faults then cost more than
  // the arithmetic.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

collective::MeshComms Connect(const RankTask& task, int rank) {
  const std::chrono::milliseconds timeout(int64_t{1000} * task.timeout_s);
  auto store = c10::make_intrusive<c10d::FileStore>(task.folder + "/rendezvous", task.ranks);
  store->setTimeout(timeout);
  collective::GroupOptions options;
  options.timeout = timeout;
  return collective::ConnectMesh({1, 1, task.ranks}, rank, store, store, options);
}

class Output {
 public:
  explicit Output(int rank) : rank_(rank) {}
  void Write(const json& message) {
    if (rank_ != 0) return;
    std::cout << message.dump() << std::endl;
    if (!std::cout) throw std::runtime_error("nobody reads the output");
  }
  void WriteProgress(const json& message) {
    if (Clock::now() - last_ < kProgressInterval) return;
    last_ = Clock::now();
    Write(message);
  }

 private:
  const int rank_;
  Clock::time_point last_;
};

void RunEvaluation(const RankTask& task, engine::InferenceEngine& engine, collective::Comm& comm,
                   Output& output) {
  // The parent has read the file from end to end.
  const auto tokens = data::TokenFile::Open(task.evaluation.data, /*verify=*/false);
  ThrowIfError(tokens.status());
  const auto start = Clock::now();
  const engine::LossSum sum =
      EvaluateWindows(engine, comm, **tokens, task.evaluation, [&](int64_t windows) {
        output.WriteProgress({{"windows", windows}});
      });
  output.Write(
      {{"loss_sum", sum.loss_sum}, {"tokens", sum.tokens}, {"seconds", SecondsSince(start)}});
}

void RunGeneration(const RankTask& task, engine::InferenceEngine& engine, collective::Comm& comm,
                   Output& output) {
  const auto start = Clock::now();
  double prompt_seconds = 0;
  Generate(engine, comm, task.generation, [&](const std::vector<int64_t>& next) {
    if (prompt_seconds == 0) prompt_seconds = SecondsSince(start);
    output.Write({{"next", next}});
  });
  output.Write({{"prompt_seconds", prompt_seconds}, {"seconds", SecondsSince(start)}});
}

void Run(const RankTask& task, int rank) {
  PrepareProcess(task);
  Output output(rank);
  std::vector<std::string> skipped;
  const auto model = OpenModel(task.model, skipped);
  ThrowIfError(model.status());
  const collective::MeshComms comms = Connect(task, rank);
  engine::InferenceOptions options;
  options.model = model->config;
  options.max_length =
      task.generates ? static_cast<int64_t>(task.generation.prompt.size()) + task.generation.tokens
                     : task.evaluation.sequence_length;
  engine::InferenceEngine engine(options, *comms.shard);
  engine.Load([&](const std::string& name, int64_t begin, int64_t count, float* out) {
    ThrowIfError(model->parameters->Read(name, begin, count, out));
  });
  output.Write({{"parameters", engine.parameters()}});
  if (task.generates) {
    RunGeneration(task, engine, *comms.shard, output);
  } else {
    RunEvaluation(task, engine, *comms.shard, output);
  }
}

}  // namespace

int RunRank(const RankTask& task, int rank) {
  try {
    Run(task, rank);
    return kExitDone;
  } catch (const StatusError& error) {
    std::cerr << error.what() << std::endl;
    return ExitCodeOf(error.status());
  } catch (const collective::CommError& error) {
    std::cerr << error.what() << std::endl;
    return kExitCollective;
  } catch (const c10::Error& error) {  // Its what() carries pages of stack.
    std::cerr << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
  }
  return kExitFailed;
}

}  // namespace fedshard::inference
