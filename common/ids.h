// Names of jobs and nodes, and random identities of process lives.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace fedshard {

// 1 to 63 lower-case letters, digits and hyphens, starting with a letter and not ending with a
// hyphen. INVALID_ARGUMENT says which rule `what` ("node id") breaks.
absl::Status ValidateId(const std::string& what, const std::string& id);

// 128 random bits in hex: one life of a process.
std::string NewIncarnation();

}  // namespace fedshard
