#include "worker/checkpoint/durable_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace fedshard::checkpoint {
namespace {

namespace fs = std::filesystem;

// Closes on every path out of a function.
class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  // Some file systems report a failed write only here.
  bool Close() {
    const int fd = fd_;
    fd_ = -1;
    return close(fd) == 0;
  }

 private:
  int fd_;
};

bool WriteAll(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t put = write(fd, bytes, count);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes += put;
    count -= static_cast<size_t>(put);
  }
  return true;
}

// "/a/b" -> "/a", "a" -> ".".
std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

absl::Status SystemError(const std::string& path, const std::string& operation, int error) {
  const char* text = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  const std::string message = absl::StrCat(path, ": ", operation, ": ", text ? text : "error", " (",
                                           name ? name : std::to_string(error), ")");
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t most) {
  const File file(path, O_RDONLY | O_NONBLOCK);  // Not blocking: it may be a pipe.
  if (file.fd() < 0) return SystemError(path, "open", errno);
  struct stat status = {};
  if (fstat(file.fd(), &status) != 0) return SystemError(path, "stat", errno);
  if (!S_ISREG(status.st_mode)) {
    return absl::DataLossError(absl::StrCat(path, ": is not a regular file"));
  }
  if (status.st_size > most) {
    return absl::DataLossError(absl::StrCat(path, ": is larger than ", most, " bytes"));
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = read(file.fd(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, "read", errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

absl::Status WriteDurably(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  {
    File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.fd() < 0) return SystemError(temporary, "create", errno);
    if (!WriteAll(file.fd(), text.data(), text.size())) {
      return SystemError(temporary, "write", errno);
    }
    if (fsync(file.fd()) != 0) return SystemError(temporary, "fsync", errno);
    if (!file.Close()) return SystemError(temporary, "close", errno);
  }
  return Rename(temporary, path);
}

absl::Status MakeFolder(const std::string& path) {
  std::vector<std::string> made;  // Their names are to be on disk too.
  for (std::string at = path; !Exists(at); at = FolderOf(at)) {
    made.push_back(at);
    if (FolderOf(at) == at) break;
  }
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return SystemError(path, "mkdir", error.value());
  // A parent that may not be opened is no reason to give up.
  for (const std::string& folder : made) (void)SyncFolder(FolderOf(folder));
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  const File folder(path, O_RDONLY | O_DIRECTORY);
  if (folder.fd() < 0) return SystemError(path, "open", errno);
  // Some file systems know no fsync of folders; there is nothing better to do on them.
  if (fsync(folder.fd()) != 0 && errno != EINVAL) return SystemError(path, "fsync", errno);
  return absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return SystemError(from, absl::StrCat("rename to ", to), errno);
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return SystemError(folder, "read folder", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return SystemError(path, "remove", error.value());
  return absl::OkStatus();
}

bool Exists(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0;
}

absl::Status PublishFolder(const std::string& from, const std::string& to,
                           const std::string& set_aside) {
  if (Exists(to)) {
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      RETURN_IF_ERROR(Rename(from, set_aside));  // The former folder has the name `from` now.
      return SyncFolder(FolderOf(to));
    }
    RETURN_IF_ERROR(Rename(to, set_aside));
  }
  RETURN_IF_ERROR(Rename(from, to));
  return SyncFolder(FolderOf(to));
}

}  // namespace fedshard::checkpoint
