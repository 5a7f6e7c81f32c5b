#include "common/duration.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace fedshard {
namespace {

struct Unit {
  const char* name;
  double us;
};
// Largest first.
constexpr Unit kUnits[] = {{"h", 3.6e9}, {"m", 6e7}, {"s", 1e6}, {"ms", 1e3}, {"us", 1}};

absl::Status Bad(const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is not a duration; write a number and a unit, like 500ms, 10s, 2m or 1h"));
}

}  // namespace

absl::StatusOr<int64_t> ParseDuration(const std::string& text) {
  char* end = nullptr;
  const double number = strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(number) || number < 0) return Bad(text);
  const std::string unit_name = end;
  for (const Unit& unit : kUnits) {
    if (unit_name == unit.name) {
      const double us = number * unit.us;
      if (us > 9e15) return Bad(text);
      return static_cast<int64_t>(std::llround(us));
    }
  }
  return Bad(text);
}

std::string FormatDuration(int64_t us) {
  for (const Unit& unit : kUnits) {
    if (static_cast<double>(us) >= unit.us || unit.us == 1) {
      char number[40];
      snprintf(number, sizeof number, "%.15g", static_cast<double>(us) / unit.us);
      return std::string(number) + unit.name;
    }
  }
  return "0s";
}

}  // namespace fedshard
