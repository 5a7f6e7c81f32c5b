#include "worker/checkpoint/merge.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/dtype.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/state_file.h"

namespace fedshard::checkpoint {
namespace {

constexpr int64_t kBlockElements = 256 << 10;
constexpr int64_t kChunkBytes = 4 << 20;
constexpr char kFileName[] = "merged.safetensors";

std::string DTypeOf(const Manifest& manifest, const std::string& kind, int32_t group) {
  for (const ManifestFile& file : manifest.files) {
    for (const FlatTensor& tensor : file.tensors) {
      if (tensor.kind == kind && tensor.group == group) return tensor.dtype;
    }
  }
  return "F32";
}

// Whose state of this kind to take: `group`, or the only one for state that groups share.
absl::StatusOr<int32_t> GroupFor(const CheckpointReader& source, const std::string& kind,
                                 int32_t group) {
  const std::vector<int32_t> groups = source.GroupsOf(kind);
  if (std::count(groups.begin(), groups.end(), group) > 0) return group;
  const bool shared = groups.size() == 1 && group < source.manifest().mesh.groups;
  if (shared && group >= 0) return groups.front();
  return absl::NotFoundError(absl::StrCat(source.path(), ": has no group ", group, "; ", kind,
                                          " is of group ", absl::StrJoin(groups, ", ")));
}

// One tensor of the new file, and where its values come from.
struct Part {
  FlatTensor tensor;
  int32_t group = 0;
};

absl::StatusOr<std::vector<Part>> PartsOf(const CheckpointReader& source, int32_t group) {
  std::vector<Part> parts;
  for (const std::string& kind : source.Kinds()) {
    ASSIGN_OR_RETURN(const int32_t from, GroupFor(source, kind, group));
    for (const auto& parameter : source.ParametersOf(kind, from)) {
      FlatTensor tensor;
      tensor.name = absl::StrCat(kind, ".", parameter.name);
      tensor.kind = kind;
      tensor.dtype = DTypeOf(source.manifest(), kind, from);
      tensor.elements = parameter.elements;
      tensor.pieces = {{parameter.name, 0, parameter.elements, 0}};
      parts.push_back({std::move(tensor), from});
    }
  }
  return parts;
}

absl::Status Copy(const CheckpointReader& source, const Part& part, StateFileWriter& file) {
  ASSIGN_OR_RETURN(const auto values, source.Source(part.tensor.kind, part.group));
  const DType dtype = *ParseDType(part.tensor.dtype);
  const auto size = static_cast<size_t>(std::min(part.tensor.elements, kBlockElements));
  std::vector<float> block(size);
  std::vector<char> bytes(size * static_cast<size_t>(BytesOf(dtype)));
  for (int64_t begin = 0; begin < part.tensor.elements; begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, part.tensor.elements - begin);
    RETURN_IF_ERROR(values->Read(part.tensor.pieces[0].parameter, begin, count, block.data()));
    FromFloats(dtype, block.data(), count, bytes.data());
    RETURN_IF_ERROR(file.Write(bytes.data(), count * BytesOf(dtype)));
  }
  return absl::OkStatus();
}

absl::Status WriteMerged(const CheckpointReader& source, const std::vector<Part>& parts,
                         const JobDirectory& place) {
  Manifest manifest = source.manifest();
  const std::string folder = place.PartialPathOf(manifest.step);
  RETURN_IF_ERROR(RemoveTree(folder));  // Of a merge that was interrupted.
  RETURN_IF_ERROR(MakeFolder(folder));
  std::vector<FlatTensor> tensors;
  for (const Part& part : parts) tensors.push_back(part.tensor);
  ASSIGN_OR_RETURN(const auto file,
                   StateFileWriter::Create(folder, kFileName, kChunkBytes, std::move(tensors)));
  for (const Part& part : parts) RETURN_IF_ERROR(Copy(source, part, *file));
  ASSIGN_OR_RETURN(ManifestFile described, file->Finish());
  manifest.mesh = Mesh{};
  manifest.files = {std::move(described)};
  return Publish(place, std::move(manifest));
}

}  // namespace

absl::StatusOr<std::string> Merge(const CheckpointReader& source, int32_t group,
                                  const std::string& directory) {
  const JobDirectory place{directory, source.manifest().job, "merge"};
  const std::string path = place.PathOf(source.manifest().step);
  if (Exists(path)) return absl::AlreadyExistsError(absl::StrCat(path, ": is there already"));
  ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsOf(source, group));
  const absl::Status status = WriteMerged(source, parts, place);
  if (!status.ok()) {
    (void)RemoveTree(place.PartialPathOf(source.manifest().step));
    return status;
  }
  return path;
}

}  // namespace fedshard::checkpoint
