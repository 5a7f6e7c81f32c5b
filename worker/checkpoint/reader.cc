#include "worker/checkpoint/reader.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/chunked_file.h"
#include "worker/checkpoint/durable_files.h"

namespace fedshard::checkpoint {
namespace {

std::string Join(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", name);
}

// Where a part of a parameter lies: elements [begin, end) of it, from `offset` in the tensor on.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;
  size_t file = 0;
  size_t tensor = 0;
};

// By begin, without overlaps.
using Intervals = std::vector<Interval>;
using Parameters = std::map<std::string, Intervals>;
using Groups = std::map<int32_t, Parameters>;

std::map<std::string, Groups> IndexOf(const Manifest& manifest) {
  std::map<std::string, Groups> kinds;
  for (size_t f = 0; f < manifest.files.size(); ++f) {
    for (size_t t = 0; t < manifest.files[f].tensors.size(); ++t) {
      const FlatTensor& tensor = manifest.files[f].tensors[t];
      Parameters& parameters = kinds[tensor.kind][tensor.group];
      for (const Piece& piece : tensor.pieces) {
        parameters[piece.parameter].push_back(
            {piece.begin, piece.begin + piece.length, piece.offset, f, t});
      }
    }
  }
  for (auto& [kind, groups] : kinds) {
    for (auto& [group, parameters] : groups) {
      for (auto& [name, intervals] : parameters) {
        std::sort(intervals.begin(), intervals.end(),
                  [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
      }
    }
  }
  return kinds;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& path) {
  const std::string file = Join(path, kManifestName);
  if (!Exists(path)) return absl::NotFoundError(absl::StrCat(path, ": does not exist"));
  if (!Exists(file)) {
    return absl::DataLossError(
        absl::StrCat(path, ": has no ", kManifestName, ": not a complete checkpoint"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(file, kMaxManifestBytes));
  auto manifest = ParseManifest(text);
  if (!manifest.ok()) {
    return absl::Status(manifest.status().code(),
                        absl::StrCat(file, ": ", std::string(manifest.status().message())));
  }
  return manifest;
}

}  // namespace

struct CheckpointReader::Impl {
  std::string path;
  Manifest manifest;
  std::map<std::string, Groups> kinds;
  mutable ChunkCache cache;                                      // Before the files, which use it.
  mutable std::map<size_t, std::unique_ptr<ChunkedFile>> files;  // Opened when first needed.

  absl::StatusOr<const ChunkedFile*> File(size_t index) const {
    std::unique_ptr<ChunkedFile>& file = files[index];
    if (file == nullptr) {
      const ManifestFile& described = manifest.files[index];
      ASSIGN_OR_RETURN(file, ChunkedFile::Open(Join(path, described.name), described, cache));
    }
    return file.get();
  }
};

namespace {

class View : public ParameterSource {
 public:
  using FileOf = std::function<absl::StatusOr<const ChunkedFile*>(size_t)>;

  View(std::string name, const Parameters& parameters, FileOf file_of)
      : name_(std::move(name)), parameters_(parameters), file_of_(std::move(file_of)) {}

  absl::Status Read(const std::string& parameter, int64_t begin, int64_t count,
                    float* out) const override {
    const auto found = parameters_.find(parameter);
    if (found == parameters_.end()) return Missing(parameter, "is not stored");
    if (begin < 0 || count < 0 || begin > INT64_MAX - count) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, " of ", parameter, ": ", count, " elements from ", begin, " on"));
    }
    const Intervals& intervals = found->second;
    // The last that begins at or before `begin`.
    auto at = std::upper_bound(intervals.begin(), intervals.end(), begin,
                               [](int64_t b, const Interval& i) { return b < i.begin; });
    if (at != intervals.begin()) --at;
    for (const int64_t end = begin + count; begin < end; ++at) {
      if (at == intervals.end() || begin < at->begin || begin >= at->end) {
        return Missing(parameter, absl::StrCat("element ", begin, " is not stored"));
      }
      const int64_t now = std::min(end, at->end) - begin;
      ASSIGN_OR_RETURN(const ChunkedFile* file, file_of_(at->file));
      RETURN_IF_ERROR(file->ReadFloats(at->tensor, at->offset + begin - at->begin, now, out));
      begin += now;
      out += now;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Missing(const std::string& parameter, const std::string& how) const {
    return absl::NotFoundError(absl::StrCat(name_, " of ", parameter, ": ", how));
  }

  const std::string name_;  // "PATH: parameters", for errors.
  const Parameters& parameters_;
  const FileOf file_of_;
};

}  // namespace

CheckpointReader::CheckpointReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointReader::~CheckpointReader() = default;

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  ASSIGN_OR_RETURN(impl->manifest, ReadManifest(path));
  for (const ManifestFile& file : impl->manifest.files) {
    RETURN_IF_ERROR(ChunkedFile::CheckSize(Join(path, file.name), file));
  }
  impl->kinds = IndexOf(impl->manifest);
  return std::unique_ptr<CheckpointReader>(new CheckpointReader(std::move(impl)));
}

const std::string& CheckpointReader::path() const { return impl_->path; }
const Manifest& CheckpointReader::manifest() const { return impl_->manifest; }
int64_t CheckpointReader::bytes_read() const { return impl_->cache.bytes_read; }

bool CheckpointReader::Has(const std::string& kind) const { return impl_->kinds.count(kind) > 0; }

std::vector<std::string> CheckpointReader::Kinds() const {
  std::vector<std::string> names;
  for (const auto& [kind, groups] : impl_->kinds) names.push_back(kind);
  return names;
}

std::vector<int32_t> CheckpointReader::GroupsOf(const std::string& kind) const {
  std::vector<int32_t> numbers;
  const auto found = impl_->kinds.find(kind);
  if (found == impl_->kinds.end()) return numbers;
  for (const auto& [group, parameters] : found->second) numbers.push_back(group);
  return numbers;
}

std::vector<CheckpointReader::Parameter> CheckpointReader::ParametersOf(const std::string& kind,
                                                                        int32_t group) const {
  std::vector<Parameter> parameters;
  std::map<std::string, size_t> seen;
  for (const ManifestFile& file : impl_->manifest.files) {
    for (const FlatTensor& tensor : file.tensors) {
      if (tensor.kind != kind || tensor.group != group) continue;
      for (const Piece& piece : tensor.pieces) {
        const auto [at, added] = seen.try_emplace(piece.parameter, parameters.size());
        if (added) parameters.push_back({piece.parameter, 0});
        int64_t& elements = parameters[at->second].elements;
        elements = std::max(elements, piece.begin + piece.length);
      }
    }
  }
  return parameters;
}

absl::StatusOr<std::unique_ptr<ParameterSource>> CheckpointReader::Source(const std::string& kind,
                                                                          int32_t group) const {
  const auto found = impl_->kinds.find(kind);
  if (found == impl_->kinds.end() || group < 0) {
    return absl::NotFoundError(
        absl::StrCat(impl_->path, ": stores no ", kind, " of group ", group));
  }
  const Groups& groups = found->second;
  auto chosen = groups.find(group);
  if (chosen == groups.end()) {
    chosen = std::next(groups.begin(), group % static_cast<int32_t>(groups.size()));
  }
  const Impl* impl = impl_.get();
  return std::unique_ptr<ParameterSource>(
      new View(absl::StrCat(impl->path, ": ", kind), chosen->second,
               [impl](size_t file) { return impl->File(file); }));
}

absl::Status CheckpointReader::Verify() const {
  for (size_t i = 0; i < impl_->manifest.files.size(); ++i) {
    ASSIGN_OR_RETURN(const ChunkedFile* file, impl_->File(i));
    RETURN_IF_ERROR(file->Verify());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FileCheck>> CheckFiles(const std::string& path) {
  const auto manifest = ReadManifest(path);
  if (absl::IsNotFound(manifest.status())) return manifest.status();
  std::vector<FileCheck> checks = {{kManifestName, 0, manifest.status()}};
  if (!manifest.ok()) return checks;
  checks[0].bytes = static_cast<int64_t>(ToJson(*manifest).size());
  ChunkCache cache;
  for (const ManifestFile& described : manifest->files) {
    const auto file = ChunkedFile::Open(Join(path, described.name), described, cache);
    checks.push_back(
        {described.name, described.bytes, file.ok() ? (*file)->Verify() : file.status()});
  }
  return checks;
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : names) {
    const auto step = StepOfName(name);
    const std::string path = Join(directory, name);
    if (step && Exists(Join(path, kManifestName))) entries.push_back({path, *step});
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step > b.step; });
  return entries;
}

absl::StatusOr<std::vector<std::string>> ListUnfinished(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  std::vector<std::string> unfinished;
  for (const std::string& name : names) {
    const size_t dot = name.find(".partial-");
    if (dot != std::string::npos && StepOfName(name.substr(0, dot))) unfinished.push_back(name);
  }
  return unfinished;
}

absl::StatusOr<Found> NewestGood(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(directory));
  Found found;
  for (const CheckpointEntry& entry : entries) {
    const auto reader = CheckpointReader::Open(entry.path);
    const absl::Status status = reader.ok() ? (*reader)->Verify() : reader.status();
    if (status.ok()) {
      found.entry = entry;
      break;
    }
    found.skipped.push_back(std::string(status.message()));
  }
  return found;
}

}  // namespace fedshard::checkpoint
