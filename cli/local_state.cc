#include "cli/local_state.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace fedshard::cli {

std::string LocalStatePath() {
  const char* state_home = getenv("XDG_STATE_HOME");
  const char* home = getenv("HOME");
  const std::string base = state_home != nullptr && *state_home != 0
                               ? state_home
                               : absl::StrCat(home != nullptr ? home : "/tmp", "/.local/state");
  return base + "/fedshard/local.json";
}

absl::Status WriteLocalState(const LocalState& state) {
  const std::string path = LocalStatePath(), temporary = path + ".new";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  std::ofstream(temporary) << nlohmann::json{{"address", state.address},
                                             {"metrics_address", state.metrics_address},
                                             {"directory", state.directory},
                                             {"pid", state.pid},
                                             {"start_ticks", state.start_ticks}}
                                  .dump(2)
                           << "\n";
  std::filesystem::rename(temporary, path, error);
  if (error) return absl::InternalError(absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

std::optional<LocalState> ReadLocalState() {
  std::ifstream file(LocalStatePath());
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  LocalState state;
  try {
    state = {json.at("address"), json.at("metrics_address"), json.at("directory"), json.at("pid"),
             json.at("start_ticks")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  if (StartTicks(state.pid) != state.start_ticks) {
    RemoveLocalState();
    return std::nullopt;
  }
  return state;
}

void RemoveLocalState() {
  std::error_code ignored;
  std::filesystem::remove(LocalStatePath(), ignored);
}

int64_t StartTicks(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  // The name, field 2, is in parentheses and may hold anything; fields from 3 on follow the last
  // one.
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(after_name + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return atoll(field.c_str());
}

}  // namespace fedshard::cli
