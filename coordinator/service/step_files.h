// Writes each job's steps to <data-directory>/jobs/<id>/steps.jsonl, one JSON object per line.
// Lines are handed to the operating system before the report counts as received. Owned by the
// service; used on the loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/core/types.h"
#include "coordinator/service/node_messages.h"

namespace fedshard::service {

class StepFiles {
 public:
  // `data_directory` must exist; empty = write nothing.
  explicit StepFiles(std::string data_directory) : data_directory_(std::move(data_directory)) {}
  ~StepFiles();
  StepFiles(const StepFiles&) = delete;
  StepFiles& operator=(const StepFiles&) = delete;

  // Appends the steps of one group. The first report of a job that has committed nothing begins the
  // file anew. Failures are logged once per job; training goes on.
  void Write(const core::JobId& job, int32_t group, bool begins, const StepReport& report);
  // Closes the job's file.
  void Close(const core::JobId& job);

 private:
  // The open file, or -1.
  int Open(const core::JobId& job, bool begins);
  void Fail(const core::JobId& job, const std::string& what);

  const std::string data_directory_;
  std::map<core::JobId, int> files_;  // -1: given up.
};

// One line of the file, with its newline; skipped steps say so. Numbers that JSON cannot express
// (NaN, infinities) become null.
std::string StepLine(int32_t group, const StepRecord& step);

}  // namespace fedshard::service
