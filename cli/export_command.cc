#include "cli/export_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/quantity.h"
#include "common/spec/model_config_json.h"
#include "common/status_macros.h"
#include "worker/checkpoint/hf_export.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/reader.h"

namespace fedshard::cli {
namespace {

namespace fs = std::filesystem;

// What is exported, and the folder that its tokenizer may be in.
struct Origin {
  std::string checkpoint;
  std::string tokenizer;
};

// By the look of the argument: a folder that is there, or a name that is no path.
Outcome FindCheckpoint(const GlobalOptions& global, const std::string& what, Origin& origin) {
  std::error_code ignored;
  if (fs::is_directory(what, ignored)) {
    origin.checkpoint = what;
    if (fs::exists(fs::path(what) / checkpoint::kManifestName, ignored)) return {};
    return {kExitUsage,
            absl::StrCat(what, ": is no checkpoint: it has no ", checkpoint::kManifestName)};
  }
  if (absl::StrContains(what, "/") && !absl::StartsWith(what, "jobs/")) {
    return {kExitNotFound, absl::StrCat(what, ": no such folder")};
  }
  Client client(global.coordinator);
  v1::Job job;
  const Outcome outcome = client.GetJob(what, job);
  if (!outcome.ok()) return outcome;
  origin.checkpoint = job.progress().checkpoint();
  origin.tokenizer = job.spec().model().init_directory();
  if (origin.checkpoint.empty()) {
    return {kExitRefused, absl::StrCat(job.name(), " has no checkpoint")};
  }
  if (fs::is_directory(origin.checkpoint, ignored)) return {};
  return {kExitNotFound, absl::StrCat(origin.checkpoint, ": the newest checkpoint of ", job.name(),
                                      " is not on this machine")};
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kAlreadyExists:
      return kExitRefused;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailed;
  }
}

absl::StatusOr<checkpoint::ExportOptions> OptionsOf(const ExportCommand& command,
                                                    const Origin& origin) {
  checkpoint::ExportOptions options;
  options.directory = command.out;
  options.dtype = command.dtype == "f32"    ? checkpoint::DType::kF32
                  : command.dtype == "bf16" ? checkpoint::DType::kBF16
                                            : checkpoint::DType::kF16;
  const auto size = ParseFileSize(command.max_file_size);
  if (!size || *size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("--max-file-size: \"", command.max_file_size,
                                                   "\" is no size like 5GB, 500MB or 1GiB"));
  }
  options.max_file_bytes = *size;
  options.interrupted = Interrupted;
  options.tokenizer_directory = command.tokenizer;
  if (command.tokenizer.empty()) {
    std::error_code ignored;
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      if (origin.tokenizer.empty() || !fs::exists(fs::path(origin.tokenizer) / name, ignored)) {
        continue;
      }
      options.tokenizer_directory = origin.tokenizer;
    }
  }
  return options;
}

absl::Status Export(const ExportCommand& command, const Origin& origin) {
  ASSIGN_OR_RETURN(const checkpoint::ExportOptions options, OptionsOf(command, origin));
  ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(origin.checkpoint));
  const checkpoint::Manifest& manifest = reader->manifest();
  ASSIGN_OR_RETURN(const ModelConfig model, ParseModelConfig(manifest.model_config));
  ASSIGN_OR_RETURN(const auto source, reader->Source("parameters", 0));
  ASSIGN_OR_RETURN(const checkpoint::ExportSummary summary,
                   checkpoint::ExportHuggingFace(*source, model, manifest.model_config, options));
  std::cout << command.out << ": step " << manifest.step << " of " << manifest.job << ", "
            << ShortCount(static_cast<double>(summary.parameters)) << " parameters as "
            << command.dtype << ", " << summary.bytes << " bytes\n";
  for (const std::string& file : summary.files) std::cout << "  " << file << "\n";
  if (options.tokenizer_directory.empty()) {
    std::cerr << "Without a tokenizer; --tokenizer DIR copies one.\n";
  }
  return absl::OkStatus();
}

}  // namespace

int RunExport(const GlobalOptions& global, const ExportCommand& command) {
  Origin origin;
  if (const Outcome found = FindCheckpoint(global, command.what, origin); !found.ok()) {
    std::cerr << "fedshard: " << found.error << "\n";
    return found.exit_code;
  }
  const absl::Status status = Export(command, origin);
  if (status.ok()) return kExitDone;
  std::cerr << "fedshard: " << status.message() << "\n";
  return ExitCodeOf(status);
}

void AddExport(CLI::App& app, const GlobalOptions& global, int& exit_code) {
  auto options = std::make_shared<ExportCommand>();
  CLI::App* command = app.add_subcommand("export", "Write a checkpoint as a Hugging Face folder");
  command->add_option("JOB|CHECKPOINT", options->what, "A job (its newest checkpoint), or a folder")
      ->required();
  command->add_option("--out", options->out, "Folder to make; never overwritten")->required();
  command->add_option("--dtype", options->dtype, "Of the weights")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer,
                      "Folder to copy the tokenizer from [that of the job's model.init]");
  command->add_option("--max-file-size", options->max_file_size, "Split the weights above this")
      ->capture_default_str();
  command->callback([&global, &exit_code, options] { exit_code = RunExport(global, *options); });
}

}  // namespace fedshard::cli
