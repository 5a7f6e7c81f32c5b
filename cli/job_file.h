// Job files: YAML in, JobSpec out. docs/jobs.md is the reference of the format.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fedshard/v1/job.pb.h"

namespace fedshard::cli {

// Reads, checks and completes a job file: defaults are filled in, paths made absolute (relative
// ones start at the file's folder), and the model's config.json embedded. INVALID_ARGUMENT: one
// "FILE:LINE:COLUMN: message" per line. NOT_FOUND: no such file.
absl::StatusOr<v1::JobSpec> ReadJobFile(const std::string& path);

// The same from text; `path` is used for messages and relative paths.
absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& path);

// Opens and verifies the token files of a spec, as a trainer will: present, undamaged, of the
// model's vocabulary, long enough.
absl::Status CheckData(const v1::JobSpec& spec);

}  // namespace fedshard::cli
