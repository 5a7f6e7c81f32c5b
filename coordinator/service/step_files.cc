#include "coordinator/service/step_files.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/log.h"

namespace fedshard::service {

std::string StepLine(int32_t group, const StepRecord& step) {
  nlohmann::ordered_json line = {{"step", step.step},
                                 {"group", group},
                                 {"tokens", step.tokens},
                                 {"loss", step.loss},
                                 {"gradient_norm", step.gradient_norm},
                                 {"learning_rate", step.learning_rate},
                                 {"seconds", step.seconds}};
  if (step.skipped) line["skipped"] = true;
  return line.dump() + "\n";
}

StepFiles::~StepFiles() {
  for (const auto& [job, fd] : files_) {
    if (fd >= 0) close(fd);
  }
}

void StepFiles::Write(const core::JobId& job, int32_t group, bool begins,
                      const StepReport& report) {
  if (data_directory_.empty()) return;
  const int fd = Open(job, begins);
  if (fd < 0) return;
  std::string text;
  for (const StepRecord& step : report.steps) text += StepLine(group, step);
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(job, strerror(errno));
    written += n;
  }
}

void StepFiles::Close(const core::JobId& job) {
  const auto it = files_.find(job);
  if (it == files_.end()) return;
  if (it->second >= 0) close(it->second);
  files_.erase(it);
}

int StepFiles::Open(const core::JobId& job, bool begins) {
  const auto it = files_.find(job);
  if (it != files_.end()) return it->second;
  const std::string directory = data_directory_ + "/jobs/" + job;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const int fd =
      error ? -1
            : open((directory + "/steps.jsonl").c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (begins ? O_TRUNC : 0), 0644);
  const std::string why = error ? error.message() : strerror(errno);
  files_[job] = fd;
  if (fd < 0) Fail(job, why);
  return fd;
}

void StepFiles::Fail(const core::JobId& job, const std::string& what) {
  LogWarning("steps.jsonl of job " + job + " is incomplete: " + what);
  int& fd = files_[job];
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace fedshard::service
