// Durations as people write them: "500ms", "10s", "2m", "1h".
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace fedshard {

// Microseconds. A number with a unit (us, ms, s, m, h); fractions are allowed ("1.5s"); not
// negative. INVALID_ARGUMENT says what was wrong with the text.
absl::StatusOr<int64_t> ParseDuration(const std::string& text);

// Shortest exact form: 1500000 -> "1.5s".
std::string FormatDuration(int64_t us);

}  // namespace fedshard
