#include "cli/text.h"

#include <time.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/spec/validate.h"

namespace fedshard::cli {
namespace {

std::string Strip(const std::string& name, const char* prefix) {
  return std::string(absl::StripPrefix(name, prefix));
}

}  // namespace

std::string StateName(v1::JobState state) { return Strip(v1::JobState_Name(state), "JOB_STATE_"); }
std::string StateName(v1::NodeState state) {
  return Strip(v1::NodeState_Name(state), "NODE_STATE_");
}
std::string StateName(v1::GroupState state) {
  return Strip(v1::GroupState_Name(state), "GROUP_STATE_");
}
std::string StateName(v1::RoundState state) {
  return Strip(v1::RoundState_Name(state), "ROUND_STATE_");
}

bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELED;
}

std::string LastPart(const std::string& name) { return name.substr(name.rfind('/') + 1); }

std::string MeshText(const v1::MeshSpec& mesh) {
  return absl::StrCat(MeshModeName(mesh.mode()), " ", mesh.federation_groups(), "x",
                      mesh.replicas(), "x", mesh.shards());
}

std::string MeshText(const Mesh& mesh) {
  return absl::StrCat(mesh.groups, "x", mesh.replicas, "x", mesh.shards);
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "";
  const time_t seconds = time.seconds();
  tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%SZ", &utc);
  return text;
}

std::string Fixed(double value, int digits) {
  char text[60];
  snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace fedshard::cli
