// One function per command; each returns the exit code. Data goes to standard output, everything
// else to standard error.
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"

namespace fedshard::cli {

struct GlobalOptions {
  std::string coordinator;
};

struct SubmitOptions {
  std::string file;
  bool dry_run = false;
  bool wait = false;   // Until the job ends.
  bool watch = false;  // The same, showing it.
  Format format = Format::kTable;
};

struct LogsOptions {
  std::string job;
  std::vector<int> ranks;
  int tail = 100;
  bool follow = false;
};

struct LocalRunOptions {
  std::string file;
  int nodes = 2;
  int slots = 4;
  std::string keep;  // Folder that stays.
  bool json = false;
};

struct LocalUpOptions {
  int nodes = 2;
  int slots = 4;
  std::string directory;
  bool foreground = false;
};

int RunSubmit(const GlobalOptions& global, const SubmitOptions& options);
int RunValidate(const std::string& file);
int RunGet(const GlobalOptions& global, const std::string& what, const std::string& name,
           Format format);
int RunDescribeJob(const GlobalOptions& global, const std::string& job);
int RunWatch(const GlobalOptions& global, const std::string& job);
int RunLogs(const GlobalOptions& global, const LogsOptions& options);
int RunCancel(const GlobalOptions& global, const std::string& job, const std::string& reason);
int RunLocalRun(const LocalRunOptions& options);
int RunLocalUp(const LocalUpOptions& options);
int RunLocalDown();

}  // namespace fedshard::cli
