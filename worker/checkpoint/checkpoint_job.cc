#include "worker/checkpoint/checkpoint_job.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "worker/checkpoint/dtype.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/state_file.h"

namespace fedshard::checkpoint {
namespace {

constexpr char kFileSuffix[] = ".safetensors";
constexpr char kDescriptionSuffix[] = ".json";
constexpr char kFailedSuffix[] = ".failed";
constexpr char kTemporarySuffix[] = ".tmp";
constexpr int64_t kWriteBytes = 1 << 20;
constexpr int64_t kMaxErrorBytes = 4096;
// Between looks at the shared folder; network file systems have nothing to wait on.
constexpr std::chrono::milliseconds kFirstPause{2};
constexpr std::chrono::milliseconds kLongestPause{200};

int64_t NowUs() { return SystemClock().Now().steady_us; }

bool IsPlainName(const std::string& text) {
  return !text.empty() && text.size() <= 100 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

// A file name's bytes after its folder; of `file`: it has the size of its description.
absl::Status CheckSize(const std::string& path, const ManifestFile& file) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return SystemError(path, "stat", errno);
  if (status.st_size == file.bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, ": has ", status.st_size, " bytes, ", file.bytes, " were written"));
}

// One file's description, once it is there. An error when its writer failed, or it is garbled.
absl::StatusOr<std::optional<ManifestFile>> LookFor(const std::string& path,
                                                    const std::string& name) {
  if (Exists(path + kDescriptionSuffix)) {
    ASSIGN_OR_RETURN(const std::string text,
                     ReadWholeFile(path + kDescriptionSuffix, kMaxManifestBytes));
    auto file = ParseManifestFile(text);
    if (!file.ok() || file->name != name) {
      return absl::DataLossError(
          absl::StrCat(path, kDescriptionSuffix, ": ",
                       file.ok() ? "is of another file" : std::string(file.status().message())));
    }
    RETURN_IF_ERROR(CheckSize(path, *file));
    return std::optional<ManifestFile>(*std::move(file));
  }
  if (Exists(path + kFailedSuffix)) {
    const auto reason = ReadWholeFile(path + kFailedSuffix, kMaxErrorBytes);
    return absl::InternalError(reason.ok() && !reason->empty()
                                   ? *reason
                                   : absl::StrCat(path, ": its writer failed without a reason"));
  }
  return std::optional<ManifestFile>();
}

}  // namespace

int64_t BytesIn(const FlatTensor& tensor) {
  const auto dtype = ParseDType(tensor.dtype);
  return dtype ? tensor.elements * BytesOf(*dtype) : 0;
}

CheckpointJob::CheckpointJob(WriterOptions options) : options_(std::move(options)) {
  if (options_.leader && Exists(options_.directory)) {
    leftovers_ = RemoveLeftovers({options_.directory, "", options_.attempt});
  }
}

JobDirectory CheckpointJob::PlaceOf(const CheckpointRequest& request) const {
  return {options_.directory, request.manifest.job, options_.attempt};
}

WriteResult CheckpointJob::Write(const CheckpointRequest& request) {
  WriteResult result;
  result.step = request.manifest.step;
  absl::Status status;
  try {
    const JobDirectory place = PlaceOf(request);
    result.path = place.PathOf(result.step);
    status = WritePart(request, place.PartialPathOf(result.step));
    if (options_.leader) status = Lead(request, status, result);
  } catch (const std::exception& error) {  // No memory for a manifest, for example.
    status = absl::InternalError(absl::StrCat(result.path, ": ", error.what()));
  }
  result.seconds = static_cast<double>(NowUs() - request.started_us) / 1e6;
  if (!status.ok()) result.error = std::string(status.message());
  return result;
}

absl::Status CheckpointJob::WritePart(const CheckpointRequest& request, const std::string& folder) {
  if (!IsPlainName(options_.attempt)) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint attempt \"", options_.attempt,
                                                   "\" must be letters, digits, \"-\" and \"_\""));
  }
  // A rank without a part makes no folder: it could come after the folder got its name.
  if (options_.file_stem.empty() && !options_.leader) return absl::OkStatus();
  RETURN_IF_ERROR(leftovers_);
  RETURN_IF_ERROR(MakeFolder(folder));
  if (options_.leader) {
    RETURN_IF_ERROR(CheckReplaceable(PlaceOf(request), request.manifest.step));
  }
  if (options_.file_stem.empty()) return absl::OkStatus();
  const absl::Status status = WriteFile(request, folder);
  if (!status.ok() && !options_.leader) LeaveFailure(folder, std::string(status.message()));
  return status;
}

void CheckpointJob::LeaveFailure(const std::string& folder, const std::string& reason) const {
  const std::string path = absl::StrCat(folder, "/", options_.file_stem, kFileSuffix);
  // On a full disk this makes the room for the note.
  for (const char* suffix : {kTemporarySuffix, ""}) unlink((path + suffix).c_str());
  const std::string note = path + kFailedSuffix;
  if (WriteDurably(note, reason.substr(0, kMaxErrorBytes)).ok()) return;
  // An empty file needs less than a block. Where even this fails, the leader's deadline helps.
  const int fd = open(note.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) close(fd);
}

WriteResult CheckpointJob::Skip(const Manifest& manifest, int64_t former) {
  const JobDirectory place{options_.directory, manifest.job, options_.attempt};
  WriteResult result;
  result.step = manifest.step;
  result.path = place.PathOf(manifest.step);
  result.error = absl::StrCat(result.path, ": skipped: that of step ", former, " took too long");
  const std::string folder = place.PartialPathOf(manifest.step);
  if (!options_.leader && !options_.file_stem.empty() && MakeFolder(folder).ok()) {
    LeaveFailure(folder, result.error);
  }
  return result;
}

absl::Status CheckpointJob::WriteFile(const CheckpointRequest& request, const std::string& folder) {
  const std::string name = options_.file_stem + kFileSuffix;
  const std::string path = absl::StrCat(folder, "/", name);
  if (request.copy_failed) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory for a copy of the state"));
  }
  // Of a former life of this rank in the same attempt.
  for (const char* suffix : {kDescriptionSuffix, kFailedSuffix}) unlink((path + suffix).c_str());
  ASSIGN_OR_RETURN(const auto file,
                   StateFileWriter::Create(folder, name, options_.chunk_bytes, request.tensors));
  const char* at = request.data;
  for (const FlatTensor& tensor : request.tensors) {
    for (int64_t left = BytesIn(tensor); left > 0;) {
      const int64_t now = std::min(left, kWriteBytes);
      RETURN_IF_ERROR(file->Write(at, now));
      at += now;
      left -= now;
    }
  }
  ASSIGN_OR_RETURN(const ManifestFile description, file->Finish());
  RETURN_IF_ERROR(WriteDurably(path + kDescriptionSuffix, ToJson(description)));
  return SyncFolder(folder);
}

absl::Status CheckpointJob::Lead(const CheckpointRequest& request, const absl::Status& own_part,
                                 WriteResult& result) {
  const JobDirectory place = PlaceOf(request);
  const std::string folder = place.PartialPathOf(request.manifest.step);
  absl::Status status = own_part;
  Manifest manifest = request.manifest;
  if (status.ok() || Exists(folder)) {
    const std::string skip = status.ok() ? "" : options_.file_stem;
    auto files = Gather(folder, skip, request.started_us + options_.deadline_ms * 1000);
    if (status.ok()) status = files.status();
    if (status.ok()) manifest.files = *std::move(files);
  }
  for (const ManifestFile& file : manifest.files) {  // The manifest takes their place.
    unlink(absl::StrCat(folder, "/", file.name, kDescriptionSuffix).c_str());
  }
  if (status.ok()) status = Publish(place, manifest);
  if (!status.ok()) {
    (void)RemoveTree(folder);  // What is left of it goes at the start of the next life.
    return status;
  }
  for (const ManifestFile& file : manifest.files) result.bytes += file.bytes;
  if (const absl::Status pruned = Prune(place, manifest.step, options_.keep); !pruned.ok()) {
    LogWarning(absl::StrCat("old checkpoints stay: ", std::string(pruned.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ManifestFile>> CheckpointJob::Gather(const std::string& folder,
                                                                const std::string& skip,
                                                                int64_t deadline_us) {
  std::vector<std::optional<ManifestFile>> files(options_.all_stems.size());
  std::vector<bool> settled(files.size());
  absl::Status first_error;
  auto pause = kFirstPause;
  while (true) {
    std::string missing;
    for (size_t i = 0; i < files.size(); ++i) {
      if (settled[i] || options_.all_stems[i] == skip) continue;
      const std::string name = options_.all_stems[i] + kFileSuffix;
      auto found = LookFor(absl::StrCat(folder, "/", name), name);
      if (!found.ok() && first_error.ok()) first_error = found.status();
      if (found.ok()) files[i] = *std::move(found);
      settled[i] = files[i].has_value() || !found.ok();
      if (!settled[i]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
    }
    if (missing.empty()) break;
    // Waits for the others even after an error: what they still write could not be removed.
    if (NowUs() >= deadline_us) {
      if (!first_error.ok()) return first_error;
      return absl::DeadlineExceededError(
          absl::StrCat(folder, ": not written within ", options_.deadline_ms, " ms: ", missing));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
  RETURN_IF_ERROR(first_error);
  std::vector<ManifestFile> all;
  for (auto& file : files) {
    if (file) all.push_back(*std::move(file));
  }
  return all;
}

}  // namespace fedshard::checkpoint
