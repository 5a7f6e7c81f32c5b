// Strict reading of a YAML mapping: every key must be known and used once, every value of its type,
// and each error says FILE:LINE:COLUMN. Errors are collected, so that one run reports all of them.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fedshard::cli {

// Where things stand in the file, and what was wrong.
class YamlReport {
 public:
  explicit YamlReport(std::string file) : file_(std::move(file)) {}

  void Error(const YAML::Mark& at, const std::string& message);
  // Remembers where `field` of the specification was written, for errors found later.
  void Locate(const std::string& field, const YAML::Mark& at) { places_[field] = at; }
  // At the field, or at the closest section around it that was written.
  void ErrorAt(const std::string& field, const std::string& message);
  bool ok() const { return errors_.empty(); }
  // One per line.
  std::string Text() const;

 private:
  std::string file_;
  std::map<std::string, YAML::Mark> places_;
  std::vector<std::string> errors_;
};

// One mapping. Getters return nothing when the key is missing or bad (then reported). Finish()
// reports unknown keys.
class YamlSection {
 public:
  // `path`: of the mapping in the file, "" for the top.
  YamlSection(const YAML::Node& node, const std::string& path, YamlReport& report);

  std::optional<std::string> Text(const std::string& key, bool required = false);
  std::optional<double> Number(const std::string& key);
  std::optional<int64_t> Integer(const std::string& key);
  // One of `names`; its index.
  std::optional<int> Choice(const std::string& key, const std::vector<std::string>& names);
  std::optional<std::vector<double>> Numbers(const std::string& key, size_t count);
  // A sub-mapping; an empty one when missing.
  YamlSection Section(const std::string& key, bool required = false);
  bool Has(const std::string& key);
  // Reports `message` at the key's value.
  void Bad(const std::string& key, const std::string& message);
  void Finish();

 private:
  // The value of a key, marked as known.
  YAML::Node Value(const std::string& key);
  std::optional<std::string> Scalar(const std::string& key);
  std::string Path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  YAML::Node node_;
  std::string path_;
  YamlReport& report_;
  std::vector<std::string> known_;
};

}  // namespace fedshard::cli
