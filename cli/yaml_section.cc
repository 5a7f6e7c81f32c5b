#include "cli/yaml_section.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/suggest.h"

namespace fedshard::cli {

void YamlReport::Error(const YAML::Mark& at, const std::string& message) {
  errors_.push_back(at.is_null()
                        ? absl::StrCat(file_, ": ", message)
                        : absl::StrCat(file_, ":", at.line + 1, ":", at.column + 1, ": ", message));
}

void YamlReport::ErrorAt(const std::string& field, const std::string& message) {
  for (std::string place = field; !place.empty();) {
    if (const auto found = places_.find(place); found != places_.end()) {
      return Error(found->second, message);
    }
    const size_t dot = place.rfind('.');
    place = dot == std::string::npos ? "" : place.substr(0, dot);
  }
  Error(YAML::Mark::null_mark(), message);
}

std::string YamlReport::Text() const {
  constexpr size_t kShown = 20;
  if (errors_.size() <= kShown) return absl::StrJoin(errors_, "\n");
  return absl::StrCat(absl::StrJoin(errors_.begin(), errors_.begin() + kShown, "\n"), "\n", file_,
                      ": and ", errors_.size() - kShown, " more errors");
}

YamlSection::YamlSection(const YAML::Node& node, const std::string& path, YamlReport& report)
    : node_(node), path_(path), report_(report) {
  if (node_.IsDefined() && !node_.IsNull() && !node_.IsMap()) {
    report_.Error(node_.Mark(),
                  absl::StrCat(path.empty() ? "the file" : path, " must be a mapping"));
    node_ = YAML::Node();
  }
}

YAML::Node YamlSection::Value(const std::string& key) {
  known_.push_back(key);
  if (!node_.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
  const YAML::Node& constant = node_;  // Looking a key up must not create it.
  YAML::Node value = constant[key];
  if (value.IsDefined()) report_.Locate(Path(key), value.Mark());
  return value;
}

bool YamlSection::Has(const std::string& key) {
  const YAML::Node& constant = node_;
  return node_.IsMap() && constant[key].IsDefined();
}

void YamlSection::Bad(const std::string& key, const std::string& message) {
  const YAML::Node& constant = node_;
  report_.Error(constant[key].Mark(), absl::StrCat(Path(key), ": ", message));
}

std::optional<std::string> YamlSection::Scalar(const std::string& key) {
  const YAML::Node value = Value(key);
  if (!value.IsDefined()) return std::nullopt;
  if (!value.IsScalar()) {
    Bad(key, "must be a single value");
    return std::nullopt;
  }
  return value.Scalar();
}

std::optional<std::string> YamlSection::Text(const std::string& key, bool required) {
  auto text = Scalar(key);
  if (!text && required && !Has(key)) {
    report_.Error(node_.IsDefined() ? node_.Mark() : YAML::Mark::null_mark(),
                  absl::StrCat(Path(key), " is missing"));
  }
  return text;
}

std::optional<double> YamlSection::Number(const std::string& key) {
  const auto text = Scalar(key);
  if (!text) return std::nullopt;
  const YAML::Node& constant = node_;
  try {
    return constant[key].as<double>();  // Knows .nan and .inf, which are refused later, by field.
  } catch (const YAML::Exception&) {
    Bad(key, absl::StrCat("must be a number, not \"", text->substr(0, 40), "\""));
    return std::nullopt;
  }
}

std::optional<int64_t> YamlSection::Integer(const std::string& key) {
  const auto text = Scalar(key);
  if (!text) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const long long value = strtoll(text->c_str(), &end, 10);
  if (text->empty() || *end != 0 || errno != 0) {
    Bad(key, absl::StrCat("must be a whole number, not \"", text->substr(0, 40), "\""));
    return std::nullopt;
  }
  return value;
}

std::optional<int> YamlSection::Choice(const std::string& key,
                                       const std::vector<std::string>& names) {
  const auto text = Scalar(key);
  if (!text) return std::nullopt;
  const auto found = std::find(names.begin(), names.end(), *text);
  if (found != names.end()) return static_cast<int>(found - names.begin());
  const std::string guess = Closest(*text, names);
  Bad(key,
      absl::StrCat("must be one of ", absl::StrJoin(names, ", "), ", not \"", text->substr(0, 40),
                   "\"", guess.empty() ? "" : absl::StrCat("; did you mean ", guess, "?")));
  return std::nullopt;
}

std::optional<std::vector<double>> YamlSection::Numbers(const std::string& key, size_t count) {
  const YAML::Node value = Value(key);
  if (!value.IsDefined()) return std::nullopt;
  std::vector<double> numbers;
  try {
    if (value.IsSequence() && value.size() == count) {
      for (const YAML::Node& item : value) numbers.push_back(item.as<double>());
      return numbers;
    }
  } catch (const YAML::Exception&) {
    // Reported below.
  }
  Bad(key, absl::StrCat("must be a list of ", count, " numbers"));
  return std::nullopt;
}

YamlSection YamlSection::Section(const std::string& key, bool required) {
  const YAML::Node value = Value(key);
  if (required && !value.IsDefined()) {
    report_.Error(node_.IsDefined() ? node_.Mark() : YAML::Mark::null_mark(),
                  absl::StrCat(Path(key), " is missing"));
  }
  return YamlSection(value.IsDefined() ? value : YAML::Node(), Path(key), report_);
}

void YamlSection::Finish() {
  if (!node_.IsMap()) return;
  std::set<std::string> seen;
  for (const auto& entry : node_) {
    if (!entry.first.IsScalar()) {
      report_.Error(entry.first.Mark(), "keys must be plain words");
      continue;
    }
    const std::string& key = entry.first.Scalar();
    if (!seen.insert(key).second) {
      report_.Error(entry.first.Mark(), absl::StrCat(Path(key), " is given twice"));
    } else if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      const std::string guess = Closest(key, known_);
      report_.Error(entry.first.Mark(),
                    absl::StrCat("unknown key \"", key.substr(0, 60), "\"",
                                 path_.empty() ? "" : absl::StrCat(" in ", path_),
                                 guess.empty() ? "" : absl::StrCat("; did you mean ", guess, "?")));
    }
  }
}

}  // namespace fedshard::cli
