// fedshard: the command line.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint_command.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/export_command.h"
#include "cli/interrupt.h"
#include "cli/local_state.h"
#include "cli/model_commands.h"
#include "cli/plan_command.h"
#include "cli/suggest.h"
#include "common/version.h"

namespace fedshard::cli {
namespace {

constexpr char kHelp[] =
    R"(Trains language models with sharded data parallelism in federation groups.

Examples:
  fedshard local run examples/shakespeare/fl-hsdp.yaml      a whole cluster on this machine, for one job
  fedshard submit job.yaml --watch                          to a running coordinator
  fedshard get jobs -o wide
  fedshard describe job shakespeare-fl-hsdp
  fedshard logs shakespeare-fl-hsdp --rank 3 --follow
  fedshard cancel shakespeare-fl-hsdp
  fedshard eval shakespeare-fl-hsdp                         loss and perplexity of its newest checkpoint
  fedshard generate llama-3m --prompt "ROMEO:"              or of a checkpoint or Hugging Face folder
  fedshard export shakespeare-fl-hsdp --out llama-3m       weights for transformers
  fedshard checkpoint verify /shared/checkpoints/llama-3m

Exit codes: 0 done, 1 the job or operation failed, 2 usage or invalid job file, 3 not found, 4 refused,
5 coordinator unreachable, 130 interrupted.
)";

constexpr char kNoCoordinator[] = "127.0.0.1:7070";

std::string DefaultCoordinator() {
  if (const char* address = getenv("FEDSHARD_COORDINATOR"); address != nullptr && *address != 0) {
    return address;
  }
  if (const auto local = ReadLocalState()) return local->address;
  return kNoCoordinator;
}

// "job" -> "jobs"; empty when it is no resource.
std::string Resource(std::string word) {
  for (const char* plural : {"jobs", "nodes", "groups", "rounds"}) {
    if (word == plural || word + "s" == plural) return plural;
  }
  return "";
}

int Usage(const std::string& message) {
  std::cerr << "fedshard: " << message << "\n";
  return kExitUsage;
}

// Everything that the parser fills in.
struct Arguments {
  GlobalOptions global;
  SubmitOptions submit;
  LogsOptions logs;
  LocalRunOptions run;
  LocalUpOptions up;
  std::string what, name, file, reason;
  std::string output = "table";
};

void AddOutput(CLI::App* command, Arguments& arguments, const std::vector<std::string>& formats) {
  command->add_option("-o,--output", arguments.output, "Output format")
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
}

Format FormatOf(const std::string& name) {
  return name == "wide"   ? Format::kWide
         : name == "json" ? Format::kJson
         : name == "yaml" ? Format::kYaml
         : name == "name" ? Format::kName
                          : Format::kTable;
}

const std::vector<std::string> kFormats = {"table", "wide", "json", "yaml", "name"};

void AddSubmit(CLI::App& app, Arguments& a, int& exit_code) {
  CLI::App* command = app.add_subcommand("submit", "Queue a job");
  command->add_option("FILE", a.submit.file, "Job file")->required();
  command->add_flag("--dry-run", a.submit.dry_run, "Check everything, queue nothing");
  command->add_flag("--wait", a.submit.wait, "Return when the job has ended, with its result");
  command->add_flag("--watch", a.submit.watch, "The same, showing progress");
  AddOutput(command, a, kFormats);
  command->callback([&] {
    a.submit.format = FormatOf(a.output);
    exit_code = RunSubmit(a.global, a.submit);
  });
}

void AddQueries(CLI::App& app, Arguments& a, int& exit_code) {
  CLI::App* validate =
      app.add_subcommand("validate", "Check a job file and its data, without a coordinator");
  validate->add_option("FILE", a.file, "Job file")->required();
  validate->callback([&] { exit_code = RunValidate(a.file); });

  CLI::App* get = app.add_subcommand("get", "List jobs, nodes, groups JOB, rounds JOB");
  get->add_option("WHAT", a.what, "jobs, nodes, groups or rounds")->required();
  get->add_option("NAME", a.name, "A job (for groups and rounds), or the one wanted");
  AddOutput(get, a, kFormats);
  get->callback([&] {
    const std::string resource = Resource(a.what);
    if (resource.empty()) {
      const std::string guess = Closest(a.what, {"jobs", "nodes", "groups", "rounds"});
      exit_code =
          Usage(absl::StrCat("get: \"", a.what, "\" is not jobs, nodes, groups or rounds",
                             guess.empty() ? "" : absl::StrCat("; did you mean ", guess, "?")));
    } else {
      exit_code = RunGet(a.global, resource, a.name, FormatOf(a.output));
    }
  });

  CLI::App* describe = app.add_subcommand("describe", "Everything about a job");
  describe->add_option("WHAT", a.what, "job")->required();
  describe->add_option("NAME", a.name, "Its name")->required();
  describe->callback([&] {
    exit_code = Resource(a.what) == "jobs"
                    ? RunDescribeJob(a.global, a.name)
                    : Usage(absl::StrCat("describe: \"", a.what,
                                         "\" is not job; fedshard describe job NAME"));
  });

  CLI::App* watch = app.add_subcommand("watch", "Follow a job to its end");
  watch->add_option("JOB", a.name, "Its name")->required();
  watch->callback([&] { exit_code = RunWatch(a.global, a.name); });

  CLI::App* logs = app.add_subcommand("logs", "What a job's trainers wrote");
  logs->add_option("JOB", a.logs.job, "Its name")->required();
  logs->add_option("--rank", a.logs.ranks, "Only these ranks");
  logs->add_option("--tail", a.logs.tail, "Last lines of each rank first")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  logs->add_flag("-f,--follow", a.logs.follow, "Go on until the job ends");
  logs->callback([&] { exit_code = RunLogs(a.global, a.logs); });

  CLI::App* cancel = app.add_subcommand("cancel", "Stop a job");
  cancel->add_option("JOB", a.name, "Its name")->required();
  cancel->add_option("--reason", a.reason, "Shown as the job's message");
  cancel->callback([&] { exit_code = RunCancel(a.global, a.name, a.reason); });
}

void AddLocal(CLI::App& app, Arguments& a, int& exit_code) {
  CLI::App* local = app.add_subcommand("local", "A cluster on this machine: run, up, down");
  local->require_subcommand(1);
  CLI::App* run =
      local->add_subcommand("run", "Start a cluster, run one job, print its result, leave nothing");
  run->add_option("FILE", a.run.file, "Job file")->required();
  run->add_option("--nodes", a.run.nodes, "Worker daemons")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  run->add_option("--slots", a.run.slots, "Ranks per worker")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  run->add_option("--keep", a.run.keep, "Keep logs and steps.jsonl in this folder");
  AddOutput(run, a, {"table", "json"});
  run->callback([&] {
    a.run.json = a.output == "json";
    exit_code = RunLocalRun(a.run);
  });
  CLI::App* up = local->add_subcommand("up", "Start a cluster in the background");
  up->add_option("--nodes", a.up.nodes, "Worker daemons")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  up->add_option("--slots", a.up.slots, "Ranks per worker")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  up->add_option("--directory", a.up.directory, "Keep logs and data in this folder");
  up->add_flag("--foreground", a.up.foreground, "Stay, until Ctrl-C");
  up->callback([&] { exit_code = RunLocalUp(a.up); });
  CLI::App* down = local->add_subcommand("down", "Stop the cluster of local up");
  down->callback([&] { exit_code = RunLocalDown(); });
}

int Main(int argc, char** argv) {
  InstallInterrupts();
  Arguments arguments;
  arguments.global.coordinator = DefaultCoordinator();
  int exit_code = kExitDone;
  CLI::App app(kHelp, "fedshard");
  app.set_version_flag("--version", VersionText("fedshard"));
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--coordinator", arguments.global.coordinator,
                 "HOST:PORT [$FEDSHARD_COORDINATOR, the local cluster, or 127.0.0.1:7070]");
  AddSubmit(app, arguments, exit_code);
  AddQueries(app, arguments, exit_code);
  AddLocal(app, arguments, exit_code);
  AddExport(app, arguments.global, exit_code);
  AddCheckpoint(app, exit_code);
  AddModelCommands(app, arguments.global, exit_code);
  AddPlan(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (argc > 1 && error.get_exit_code() != 0) {
      const std::string guess =
          Closest(argv[1], {"submit", "validate", "get", "describe", "watch", "logs", "cancel",
                            "local", "export", "checkpoint", "eval", "generate", "plan"});
      if (!guess.empty() && guess != argv[1])
        std::cerr << "Did you mean fedshard " << guess << "?\n";
    }
    return app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace fedshard::cli

int main(int argc, char** argv) { return fedshard::cli::Main(argc, argv); }
