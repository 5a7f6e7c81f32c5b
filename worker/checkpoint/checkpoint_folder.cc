#include "worker/checkpoint/checkpoint_folder.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/reader.h"

namespace fedshard::checkpoint {
namespace {

// "step-00000400.partial-a1" in its parts.
struct Leftover {
  int64_t step = 0;
  std::string state;
  std::string attempt;
};

std::optional<Leftover> ParseLeftover(const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return std::nullopt;
  const size_t hyphen = name.find('-', dot);
  const std::optional<int64_t> step = StepOfName(name.substr(0, dot));
  if (hyphen == std::string::npos || !step) return std::nullopt;
  Leftover left{*step, name.substr(dot + 1, hyphen - dot - 1), name.substr(hyphen + 1)};
  if (left.state != "partial" && left.state != "replaced" && left.state != "deleted") {
    return std::nullopt;
  }
  return left;
}

std::string Join(const JobDirectory& place, int64_t step, const std::string& state) {
  return absl::StrCat(place.directory, "/", CheckpointName(step), ".", state, "-", place.attempt);
}

absl::StatusOr<Manifest> ManifestOf(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadWholeFile(absl::StrCat(path, "/", kManifestName), kMaxManifestBytes));
  return ParseManifest(text);
}

}  // namespace

std::string JobDirectory::PathOf(int64_t step) const {
  return absl::StrCat(directory, "/", CheckpointName(step));
}
std::string JobDirectory::PartialPathOf(int64_t step) const { return Join(*this, step, "partial"); }
std::string JobDirectory::ReplacedPathOf(int64_t step) const {
  return Join(*this, step, "replaced");
}
std::string JobDirectory::DeletedPathOf(int64_t step) const { return Join(*this, step, "deleted"); }

absl::Status RemoveLeftovers(const JobDirectory& place) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(place.directory));
  for (const std::string& name : names) {
    const auto left = ParseLeftover(name);
    if (!left) continue;
    const std::string path = absl::StrCat(place.directory, "/", name);
    if (left->state == "replaced" && !Exists(place.PathOf(left->step))) {
      RETURN_IF_ERROR(Rename(path, place.PathOf(left->step)));
    } else {
      RETURN_IF_ERROR(RemoveTree(path));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReplaceable(const JobDirectory& place, int64_t step) {
  const std::string path = place.PathOf(step);
  if (!Exists(path)) return absl::OkStatus();
  if (!Exists(absl::StrCat(path, "/", kManifestName))) return absl::OkStatus();  // No checkpoint.
  const auto manifest = ManifestOf(path);
  if (!manifest.ok() && manifest.status().code() == absl::StatusCode::kDataLoss) {
    return absl::OkStatus();  // Garbled: of use to nobody.
  }
  if (!manifest.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": is there and cannot be read: ", std::string(manifest.status().message())));
  }
  if (manifest->job == place.job) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": is a checkpoint of job \"",
                                                    manifest->job,
                                                    "\"; give each job a directory of its own"));
}

absl::Status Publish(const JobDirectory& place, Manifest manifest) {
  if (manifest.created.empty()) manifest.created = FormatTimestamp(SystemClock().Now().wall_us);
  if (manifest.version.empty()) manifest.version = ProjectVersion();
  const std::string folder = place.PartialPathOf(manifest.step);
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  const std::string text = ToJson(manifest);
  // What no reader would accept must not count as a checkpoint.
  if (const auto parsed = ParseManifest(text); !parsed.ok()) {
    return absl::InternalError(absl::StrCat(path, ": ", std::string(parsed.status().message())));
  }
  RETURN_IF_ERROR(WriteDurably(path, text));
  RETURN_IF_ERROR(SyncFolder(folder));
  return PublishFolder(folder, place.PathOf(manifest.step), place.ReplacedPathOf(manifest.step));
}

absl::Status Prune(const JobDirectory& place, int64_t step, int64_t keep) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(place.directory));
  int64_t kept = 0;
  for (const CheckpointEntry& entry : entries) {  // Newest first.
    if (keep == 0 || entry.step > step) continue;
    const auto manifest = ManifestOf(entry.path);
    if (!manifest.ok() || manifest->job != place.job || ++kept <= keep) continue;
    // Renamed first: a half-deleted folder must not look like a checkpoint.
    RETURN_IF_ERROR(Rename(entry.path, place.DeletedPathOf(entry.step)));
    RETURN_IF_ERROR(RemoveTree(place.DeletedPathOf(entry.step)));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(place.directory));
  for (const std::string& name : names) {
    const auto left = ParseLeftover(name);
    if (!left || left->attempt != place.attempt) continue;
    const bool ours_to_come = left->state == "partial" && left->step > step;
    const bool not_replaced = left->state == "replaced" && !Exists(place.PathOf(left->step));
    if (ours_to_come || not_replaced) continue;
    RETURN_IF_ERROR(RemoveTree(absl::StrCat(place.directory, "/", name)));
  }
  return absl::OkStatus();
}

}  // namespace fedshard::checkpoint
