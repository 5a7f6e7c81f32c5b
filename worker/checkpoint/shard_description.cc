#include "worker/checkpoint/shard_description.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace fedshard::checkpoint {
namespace {

using Sizes = std::map<std::string, int64_t>;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

absl::Status CheckParameter(const std::string& name, Ranges ranges, int64_t size) {
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& [begin, range_end] : ranges) {
    if (begin > end) break;
    end = std::max(end, range_end);
  }
  const int64_t stored = ranges.empty() ? 0 : ranges.back().second;
  if (end == size && stored == size) return absl::OkStatus();
  const std::string what =
      stored == end
          ? absl::StrCat("has ", stored, " elements in the checkpoint, ", size, " in the model")
          : absl::StrCat("element ", end, " is not stored");
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
}

}  // namespace

std::vector<FlatTensor> DescribeShard(const engine::ModelLayout& layout, int shard,
                                      const std::string& kind, int32_t group,
                                      const std::string& dtype) {
  std::vector<FlatTensor> tensors;
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    FlatTensor tensor;
    tensor.name = absl::StrCat(kind, ".", unit);
    tensor.kind = kind;
    tensor.group = group;
    tensor.dtype = dtype;
    tensor.elements = layout.shard_size(unit);
    for (const engine::ShardPiece& piece : layout.Pieces(unit, shard)) {
      const engine::ParameterSpec& parameter = layout.units()[unit].parameters[piece.parameter];
      tensor.pieces.push_back(
          {parameter.name, piece.parameter_offset, piece.length, piece.shard_offset});
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status CheckModel(const Manifest& manifest, const engine::ModelLayout& layout,
                        const std::string& kind) {
  std::map<int32_t, std::map<std::string, Ranges>> groups;
  for (const ManifestFile& file : manifest.files) {
    for (const FlatTensor& tensor : file.tensors) {
      if (tensor.kind != kind) continue;
      for (const Piece& piece : tensor.pieces) {
        groups[tensor.group][piece.parameter].push_back({piece.begin, piece.begin + piece.length});
      }
    }
  }
  if (groups.empty()) return absl::NotFoundError(absl::StrCat("stores no ", kind));
  Sizes sizes;
  for (const engine::UnitLayout& unit : layout.units()) {
    for (const engine::ParameterSpec& parameter : unit.parameters) {
      sizes[parameter.name] = parameter.size;
    }
  }
  for (const auto& [group, parameters] : groups) {
    for (const auto& [name, size] : sizes) {
      const auto found = parameters.find(name);
      const std::string what = absl::StrCat(kind, " of ", name);
      if (found == parameters.end()) {
        return absl::InvalidArgumentError(absl::StrCat(what, ": is not in the checkpoint"));
      }
      RETURN_IF_ERROR(CheckParameter(what, found->second, size));
    }
    for (const auto& [name, ranges] : parameters) {
      if (sizes.count(name) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(kind, " of ", name, ": is not a parameter of the model"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const Manifest& manifest, const ModelConfig& model,
                        const std::string& kind) {
  try {
    return CheckModel(manifest, engine::ModelLayout(model, 1), kind);
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace fedshard::checkpoint
