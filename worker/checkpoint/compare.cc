#include "worker/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <tuple>

#include "common/status_macros.h"

namespace fedshard::checkpoint {
namespace {

constexpr int64_t kBlockElements = 256 << 10;

using Key = std::tuple<std::string, int32_t, std::string>;  // Kind, group, parameter.

void Add(const CheckpointReader& reader, int64_t ParameterDifference::*elements,
         std::map<Key, ParameterDifference>& all) {
  for (const std::string& kind : reader.Kinds()) {
    for (const int32_t group : reader.GroupsOf(kind)) {
      for (const auto& parameter : reader.ParametersOf(kind, group)) {
        ParameterDifference& difference = all[{kind, group, parameter.name}];
        difference.kind = kind;
        difference.group = group;
        difference.parameter = parameter.name;
        difference.*elements = parameter.elements;
      }
    }
  }
}

void CompareBlock(const std::vector<float>& a, const std::vector<float>& b, size_t count,
                  ParameterDifference& difference) {
  if (memcmp(a.data(), b.data(), count * sizeof(float)) == 0) return;
  for (size_t i = 0; i < count; ++i) {
    if (memcmp(&a[i], &b[i], sizeof(float)) == 0) continue;
    ++difference.different;
    const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    difference.max_absolute =
        std::max(difference.max_absolute,
                 std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
  }
}

absl::Status CompareValues(const ParameterSource& a, const ParameterSource& b,
                           ParameterDifference& difference) {
  const auto size = static_cast<size_t>(std::min(difference.elements_a, kBlockElements));
  std::vector<float> from_a(size);
  std::vector<float> from_b(size);
  for (int64_t begin = 0; begin < difference.elements_a; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, difference.elements_a - begin);
    RETURN_IF_ERROR(a.Read(difference.parameter, begin, count, from_a.data()));
    RETURN_IF_ERROR(b.Read(difference.parameter, begin, count, from_b.data()));
    CompareBlock(from_a, from_b, static_cast<size_t>(count), difference);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ParameterDifference>> Compare(const CheckpointReader& a,
                                                         const CheckpointReader& b) {
  std::map<Key, ParameterDifference> all;
  Add(a, &ParameterDifference::elements_a, all);
  Add(b, &ParameterDifference::elements_b, all);
  std::vector<ParameterDifference> differences;
  for (auto& [key, difference] : all) {
    if (difference.elements_a == difference.elements_b) {
      ASSIGN_OR_RETURN(const auto from_a, a.Source(difference.kind, difference.group));
      ASSIGN_OR_RETURN(const auto from_b, b.Source(difference.kind, difference.group));
      RETURN_IF_ERROR(CompareValues(*from_a, *from_b, difference));
    } else {
      difference.different = std::max(difference.elements_a, difference.elements_b);
      difference.max_absolute = std::numeric_limits<double>::infinity();
    }
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace fedshard::checkpoint
