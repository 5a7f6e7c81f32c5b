// The end of a job: one JSON object for programs, a table for people. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "fedshard/v1/job.pb.h"

namespace fedshard::cli {

// The object that `local run -o json` prints (docs/cli.md). log_directory: empty = null.
nlohmann::ordered_json SummaryJson(const v1::Job& job, const std::string& log_directory);

// The same as a table, with the text sample when there is one.
std::string SummaryText(const v1::Job& job);

}  // namespace fedshard::cli
