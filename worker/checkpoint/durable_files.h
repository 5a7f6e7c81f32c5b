// Files and folders that are on disk, or not there: fsync before rename, rename before fsync of the
// folder. Errors name the path and the system's error: NOT_FOUND, RESOURCE_EXHAUSTED (disk or quota
// full, file size limit), PERMISSION_DENIED, INTERNAL. Stateless; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fedshard::checkpoint {

// "/a/b: write: No space left on device (ENOSPC)".
absl::Status SystemError(const std::string& path, const std::string& operation, int error);

// The whole file; DATA_LOSS when it is larger than `most` bytes or no regular file.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t most);
// Replaces `path` in one step: a reader sees the old text or the new one. The name itself is
// durable only after SyncFolder.
absl::Status WriteDurably(const std::string& path, const std::string& text);

// With its parents, durably; no error when it is there.
absl::Status MakeFolder(const std::string& path);
absl::Status SyncFolder(const std::string& path);
absl::Status Rename(const std::string& from, const std::string& to);
// The names in it, sorted.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder);
// With everything in it; no error when it is not there.
absl::Status RemoveTree(const std::string& path);
bool Exists(const std::string& path);

// Gives the finished folder `from` the name `to`, durably. What had the name before gets the name
// `set_aside`: by one atomic exchange where the file system can, so that `to` names a whole folder
// at every moment, else by two renames.
absl::Status PublishFolder(const std::string& from, const std::string& to,
                           const std::string& set_aside);

}  // namespace fedshard::checkpoint
