#include "cli/model_commands.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/client.h"
#include "cli/exit_codes.h"
#include "cli/local_cluster.h"

namespace fedshard::cli {
namespace {

int Fail(int exit_code, const std::string& message) {
  std::cerr << "fedshard: " << message << "\n";
  return exit_code;
}

// When `model` is no path, the job of that name: `model` becomes its newest checkpoint. Returns an
// exit code; kExitDone with `is_job` false when it is a path.
int Resolve(const GlobalOptions& global, std::string& model, v1::Job& job, bool& is_job) {
  std::error_code ignored;
  is_job = false;
  if (std::filesystem::exists(model, ignored)) return kExitDone;
  const std::string id(absl::StripPrefix(model, "jobs/"));
  if (absl::StrContains(id, "/") || absl::StrContains(id, ".")) {
    return Fail(kExitNotFound, absl::StrCat(model, ": no such file or folder"));
  }
  const Outcome outcome = Client(global.coordinator).GetJob(id, job);
  if (!outcome.ok()) {
    return Fail(outcome.exit_code,
                absl::StrCat(model, ": no such file or folder; as a job: ", outcome.error));
  }
  is_job = true;
  model = job.progress().checkpoint();
  if (model.empty()) {
    return Fail(kExitRefused, absl::StrCat("job ", id, " has no checkpoint; checkpoint.directory ",
                                           "in its job file says where they go"));
  }
  return kExitDone;
}

// Replaces this process, so that signals, output and exit code are the program's own.
int Become(const std::vector<std::string>& arguments) {
  std::string program = BinaryDirectory() + "/fedshard-model";
  std::vector<char*> argv = {program.data()};
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  // A mask outlives exec, and this process blocks what ends one.
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execv(program.c_str(), argv.data());
  return Fail(kExitFailed, absl::StrCat("cannot execute ", program, ": ", strerror(errno)));
}

}  // namespace

int RunEval(const GlobalOptions& global, inference::EvalOptions options) {
  v1::Job job;
  bool is_job = false;
  if (const int failed = Resolve(global, options.common.model, job, is_job)) return failed;
  if (is_job) {
    if (options.data.empty()) options.data = job.spec().data().validation();
    if (options.sequence_length == 0) {
      options.sequence_length = job.spec().data().sequence_length();
    }
  }
  if (options.data.empty()) {
    return Fail(kExitUsage, is_job ? "the job has no validation file; give --data"
                                   : "--data: give a token file");
  }
  return Become(ToArguments(options));
}

int RunGenerate(const GlobalOptions& global, inference::GenerateOptions options) {
  v1::Job job;
  bool is_job = false;
  if (const int failed = Resolve(global, options.common.model, job, is_job)) return failed;
  if (is_job && options.tokenizer.empty() && !job.spec().model().init_directory().empty()) {
    // The tokenizer of the weights that the job began with.
    const std::string file = job.spec().model().init_directory() + "/tokenizer.json";
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) options.tokenizer = file;
  }
  return Become(ToArguments(options));
}

void AddModelCommands(CLI::App& app, const GlobalOptions& global, int& exit_code) {
  auto eval_options = std::make_shared<inference::EvalOptions>();
  CLI::App* eval = app.add_subcommand("eval", "Loss and perplexity of a model");
  inference::AddEvalOptions(*eval, /*jobs=*/true, *eval_options);
  eval->callback(
      [&global, &exit_code, eval_options] { exit_code = RunEval(global, *eval_options); });
  auto generate_options = std::make_shared<inference::GenerateOptions>();
  CLI::App* generate = app.add_subcommand("generate", "Continue a text with a model");
  inference::AddGenerateOptions(*generate, /*jobs=*/true, *generate_options);
  generate->callback([&global, &exit_code, generate_options] {
    exit_code = RunGenerate(global, *generate_options);
  });
}

}  // namespace fedshard::cli
