#include "cli/quantity.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace fedshard::cli {
namespace {

struct Unit {
  const char* name;
  double factor;
};

template <size_t N>
std::optional<int64_t> ParseWithUnits(const std::string& text, const Unit (&units)[N]) {
  char* end = nullptr;
  const double number = strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(number)) return std::nullopt;
  for (const Unit& unit : units) {
    if (std::string(end) == unit.name) {
      const double value = number * unit.factor;
      if (std::abs(value) > 9e18 || value != std::floor(value)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> ParseCount(const std::string& text) {
  static constexpr Unit kUnits[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}};
  return ParseWithUnits(text, kUnits);
}

std::optional<int64_t> ParseBytes(const std::string& text) {
  static constexpr Unit kUnits[] = {{"", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};
  return ParseWithUnits(text, kUnits);
}

std::optional<int64_t> ParseFileSize(const std::string& text) {
  static constexpr Unit kUnits[] = {{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  const auto decimal = ParseWithUnits(text, kUnits);
  return decimal ? decimal : ParseBytes(text);
}

std::optional<double> ParsePercentage(const std::string& text) {
  char* end = nullptr;
  const double number = strtod(text.c_str(), &end);
  if (end == text.c_str() || std::string(end) != "%" || !(number >= 0 && number <= 100)) {
    return std::nullopt;
  }
  return number / 100;
}

std::string ShortCount(double value) {
  static constexpr Unit kUnits[] = {{"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"K", 1e3}};
  char text[40];
  for (const Unit& unit : kUnits) {
    if (std::abs(value) >= unit.factor) {
      snprintf(text, sizeof text, "%.4g%s", value / unit.factor, unit.name);
      return text;
    }
  }
  snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string ShortBytes(int64_t bytes) {
  static constexpr Unit kUnits[] = {
      {"TiB", 1099511627776.0}, {"GiB", 1073741824}, {"MiB", 1048576}, {"KiB", 1024}};
  char text[40];
  for (const Unit& unit : kUnits) {
    if (static_cast<double>(bytes) >= unit.factor) {
      snprintf(text, sizeof text, "%.1f %s", static_cast<double>(bytes) / unit.factor, unit.name);
      return text;
    }
  }
  snprintf(text, sizeof text, "%ld B", static_cast<long>(bytes));
  return text;
}

std::string ShortSeconds(double seconds) {
  char text[60];
  const auto whole = static_cast<int64_t>(seconds);
  if (seconds < 10) {
    snprintf(text, sizeof text, "%.1fs", seconds);
  } else if (whole < 60) {
    snprintf(text, sizeof text, "%lds", static_cast<long>(whole));
  } else if (whole < 3600) {
    snprintf(text, sizeof text, "%ldm %02lds", static_cast<long>(whole / 60),
             static_cast<long>(whole % 60));
  } else {
    snprintf(text, sizeof text, "%ldh %02ldm", static_cast<long>(whole / 3600),
             static_cast<long>(whole / 60 % 60));
  }
  return text;
}

}  // namespace fedshard::cli
