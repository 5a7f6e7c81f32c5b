// -o table|wide|json|yaml|name for lists of resources, and the text of `describe job`. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/text.h"

namespace fedshard::cli {

enum class Format { kTable, kWide, kJson, kYaml, kName };

// json and yaml mirror the API's messages, with the field names of the protos: an object for one
// (`single`), else a list.
std::string Show(const std::vector<v1::Job>& jobs, Format format, bool single = false);
std::string Show(const std::vector<v1::Node>& nodes, Format format);
std::string Show(const std::vector<v1::Group>& groups, Format format);
std::string Show(const std::vector<v1::Round>& rounds, Format format);

std::string Describe(const v1::Job& job, const std::vector<v1::Group>& groups,
                     const std::vector<v1::Round>& rounds);

}  // namespace fedshard::cli
