#include "cli/checkpoint_diff.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/text.h"

namespace fedshard::cli {
namespace {

using checkpoint::Manifest;
using checkpoint::ParameterDifference;
using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

// Name, value in a, value in b.
Rows CountersOf(const Manifest& a, const Manifest& b) {
  const auto row = [](const char* name, int64_t x, int64_t y) {
    return std::vector<std::string>{name, absl::StrCat(x), absl::StrCat(y)};
  };
  return {{"job", a.job, b.job},
          {"mesh", MeshText(a.mesh), MeshText(b.mesh)},
          row("step", a.step, b.step),
          row("tokens", a.tokens, b.tokens),
          row("next_sample", a.next_sample, b.next_sample),
          row("optimizer_steps", a.optimizer_steps, b.optimizer_steps),
          {"model_seed", absl::StrCat(a.model_seed), absl::StrCat(b.model_seed)},
          {"data_seed", absl::StrCat(a.data_seed), absl::StrCat(b.data_seed)}};
}

// Who trained it and on how many ranks is no part of the state.
bool SameCounters(const Rows& counters) {
  return std::all_of(counters.begin() + 2, counters.end(),
                     [](const auto& row) { return row[1] == row[2]; });
}

std::string Distance(double value) {
  if (std::isinf(value)) return "inf";
  char text[40];
  snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::vector<std::string> RowOf(const ParameterDifference& d) {
  std::string state = d.different == 0 ? "equal bits" : "differs";
  if (d.elements_a == 0) state = "only in B";
  if (d.elements_b == 0) state = "only in A";
  const bool sizes = d.elements_a != d.elements_b && d.elements_a > 0 && d.elements_b > 0;
  if (sizes) state = absl::StrCat("sizes ", d.elements_a, " and ", d.elements_b);
  return {d.parameter,
          d.kind,
          absl::StrCat(d.group),
          absl::StrCat(std::max(d.elements_a, d.elements_b)),
          absl::StrCat(d.different),
          d.elements_a == d.elements_b ? Distance(d.max_absolute) : "",
          state};
}

std::string DiffText(const Rows& counters, const std::vector<ParameterDifference>& differences,
                     bool all) {
  Rows rows = {{"COUNTER", "A", "B", ""}};
  for (const auto& row : counters) {
    rows.push_back({row[0], row[1], row[2], row[1] == row[2] ? "" : "differs"});
  }
  std::string text = Table(rows) + "\n";
  rows = {{"PARAMETER", "KIND", "GROUP", "ELEMENTS", "DIFFERENT", "MAX ABS", "STATE"}};
  size_t equal = 0;
  for (const ParameterDifference& difference : differences) {
    if (difference.different == 0) ++equal;
    if (all || difference.different > 0) rows.push_back(RowOf(difference));
  }
  if (rows.size() > 1) text += Table(rows) + "\n";
  return absl::StrCat(text, equal, " of ", differences.size(), " tensors have equal bits\n");
}

json DiffJson(const Rows& counters, const std::vector<ParameterDifference>& differences, bool all) {
  json result = {{"counters", json::object()}, {"parameters", json::array()}};
  for (const auto& row : counters) result["counters"][row[0]] = {{"a", row[1]}, {"b", row[2]}};
  for (const ParameterDifference& d : differences) {
    if (!all && d.different == 0) continue;
    // JSON has no infinity.
    const json distance = std::isinf(d.max_absolute) ? json(nullptr) : json(d.max_absolute);
    result["parameters"].push_back({{"parameter", d.parameter},
                                    {"kind", d.kind},
                                    {"group", d.group},
                                    {"elements_a", d.elements_a},
                                    {"elements_b", d.elements_b},
                                    {"different", d.different},
                                    {"max_absolute", distance},
                                    {"equal_bits", d.different == 0}});
  }
  return result;
}

}  // namespace

std::string ShowDiff(const Manifest& a, const Manifest& b,
                     const std::vector<ParameterDifference>& differences, bool all, bool as_json) {
  const Rows counters = CountersOf(a, b);
  return as_json ? DiffJson(counters, differences, all)
                           .dump(2, ' ', false, json::error_handler_t::replace) +
                       "\n"
                 : DiffText(counters, differences, all);
}

bool SameState(const Manifest& a, const Manifest& b,
               const std::vector<ParameterDifference>& differences) {
  return SameCounters(CountersOf(a, b)) &&
         std::all_of(differences.begin(), differences.end(),
                     [](const ParameterDifference& d) { return d.different == 0; });
}

}  // namespace fedshard::cli
