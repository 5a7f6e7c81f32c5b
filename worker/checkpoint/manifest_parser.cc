// Manifests are untrusted input: everything that a reader later relies on is checked here.
#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/dtype.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/manifest_json.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kMaxCount = int64_t{1} << 62;
constexpr int64_t kMaxStep = 100'000'000'000'000'000;  // 18 digits: folder names parse back.
constexpr int64_t kMaxFileBytes = int64_t{1} << 56;
constexpr int64_t kMaxElements = kMaxFileBytes / 2;
constexpr int64_t kMaxChunkBytes = 256 << 20;  // Readers hold one in memory.
constexpr int64_t kMaxRanks = 1 << 20;
constexpr size_t kMaxName = 200;
constexpr char kNameCharacters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

// A name that stays in its folder, and is not one of a half-written file.
bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName && name[0] != '.' && name != kManifestName &&
         name.find_first_not_of(kNameCharacters) == std::string::npos;
}

// Kinds are free, but become part of tensor names.
bool IsKind(const std::string& kind) {
  return !kind.empty() && kind.size() <= kMaxName &&
         kind.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
}

Piece ParsePiece(ObjectReader reader, int64_t elements) {
  Piece piece;
  piece.parameter = reader.Text("parameter");
  if (piece.parameter.empty()) reader.Fail("parameter", "is empty");
  piece.begin = reader.Int("begin", 0, kMaxElements);
  piece.length = reader.Int("length", 1, kMaxElements);
  piece.offset = reader.Int("offset", 0, kMaxElements);
  if (piece.offset + piece.length > elements) {
    reader.Fail("length", absl::StrCat("the piece ends at ", piece.offset + piece.length,
                                       ", beyond the tensor's ", elements, " elements"));
  }
  reader.Finish();
  return piece;
}

FlatTensor ParseTensor(const json& value, const std::string& path, absl::Status& status) {
  ObjectReader reader(value, path, status);
  FlatTensor tensor;
  tensor.name = reader.Text("name");
  if (tensor.name.empty() || tensor.name.size() > kMaxName) {
    reader.Fail("name", absl::StrCat("must have 1 to ", kMaxName, " bytes"));
  }
  tensor.kind = reader.Text("kind");
  if (!IsKind(tensor.kind)) {
    reader.Fail("kind", "must be lower-case letters, digits and underscores");
  }
  tensor.group = static_cast<int32_t>(reader.Int("group", 0, kMaxRanks - 1));
  tensor.dtype = reader.Text("dtype");
  if (tensor.dtype != "F32" && tensor.dtype != "BF16") {
    reader.Fail("dtype", "must be F32 or BF16");
  }
  tensor.elements = reader.Int("elements", 0, kMaxElements);
  const json& pieces = reader.Array("pieces");
  int64_t end = 0;
  for (size_t i = 0; i < pieces.size() && status.ok(); ++i) {
    const std::string at = reader.PathOf("pieces", i);
    tensor.pieces.push_back(ParsePiece(ObjectReader(pieces[i], at, status), tensor.elements));
    const Piece& piece = tensor.pieces.back();
    if (piece.offset < end) {
      reader.Fail(absl::StrCat("pieces[", i, "].offset"), "overlaps the piece before it");
    }
    end = piece.offset + piece.length;
  }
  reader.Finish();
  return tensor;
}

void ParseChecksums(ObjectReader& reader, ManifestFile& file, const absl::Status& status) {
  const json& checksums = reader.Array("chunk_checksums");
  if (!status.ok()) return;
  const int64_t chunks = (file.bytes + file.chunk_bytes - 1) / file.chunk_bytes;
  if (static_cast<int64_t>(checksums.size()) != chunks) {
    reader.Fail("chunk_checksums", absl::StrCat("has ", checksums.size(), " entries, but ",
                                                file.bytes, " bytes are ", chunks, " chunks"));
    return;
  }
  file.chunk_checksums.resize(checksums.size());
  for (size_t i = 0; i < checksums.size(); ++i) {
    if (!ParseHex(checksums[i], file.chunk_checksums[i])) {
      reader.Fail(absl::StrCat("chunk_checksums[", i, "]"), "must be 16 hex digits");
      return;
    }
  }
}

ManifestFile ParseFile(const json& value, const std::string& path, absl::Status& status) {
  ObjectReader reader(value, path, status);
  ManifestFile file;
  file.name = reader.Text("name");
  if (!IsFileName(file.name)) {
    reader.Fail("name", "must be a plain file name of letters, digits, \"-\", \"_\" and \".\"");
  }
  file.bytes = reader.Int("bytes", 0, kMaxFileBytes);
  file.chunk_bytes = reader.Int("chunk_bytes", 1, kMaxChunkBytes);
  ParseChecksums(reader, file, status);
  const json& tensors = reader.Array("tensors");
  std::set<std::string> names;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size() && status.ok(); ++i) {
    file.tensors.push_back(ParseTensor(tensors[i], reader.PathOf("tensors", i), status));
    const FlatTensor& tensor = file.tensors.back();
    if (!status.ok()) break;
    const std::string field = absl::StrCat("tensors[", i, "]");
    if (!names.insert(tensor.name).second) reader.Fail(field + ".name", "is taken");
    bytes += tensor.elements * BytesOf(*ParseDType(tensor.dtype));
    if (bytes > file.bytes) {
      reader.Fail(field + ".elements", absl::StrCat("more than a file of ", file.bytes, " bytes"));
    }
  }
  reader.Finish();
  return file;
}

Mesh ParseMesh(ObjectReader reader) {
  const int64_t groups = reader.Int("groups", 1, kMaxRanks);
  const int64_t replicas = reader.Int("replicas", 1, kMaxRanks);
  const int64_t shards = reader.Int("shards", 1, kMaxRanks);
  if (groups * replicas > kMaxRanks || groups * replicas * shards > kMaxRanks) {
    reader.Fail("", absl::StrCat("has more than ", kMaxRanks, " ranks"));
  }
  reader.Finish();
  return {static_cast<int32_t>(groups), static_cast<int32_t>(replicas),
          static_cast<int32_t>(shards)};
}

// Each element of a parameter is stored once per kind and group, or two readers could disagree.
absl::Status CheckOverlaps(const Manifest& manifest) {
  using Key = std::tuple<std::string, int32_t, std::string>;
  std::map<Key, std::vector<std::pair<int64_t, int64_t>>> intervals;
  for (const ManifestFile& file : manifest.files) {
    for (const FlatTensor& tensor : file.tensors) {
      for (const Piece& piece : tensor.pieces) {
        intervals[{tensor.kind, tensor.group, piece.parameter}].push_back(
            {piece.begin, piece.begin + piece.length});
      }
    }
  }
  for (auto& [key, list] : intervals) {
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) {
      if (list[i].first >= list[i - 1].second) continue;
      return absl::DataLossError(absl::StrCat("files: ", std::get<0>(key), " of ", std::get<2>(key),
                                              " in group ", std::get<1>(key), ": element ",
                                              list[i].first, " is stored twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ManifestFile> ParseManifestFile(const std::string& text) {
  const auto body = Unseal(text);
  if (!body.ok()) return body.status();
  absl::Status status;
  ManifestFile file = ParseFile(*body, "", status);
  if (!status.ok()) return status;
  return file;
}

absl::StatusOr<Manifest> ParseManifest(const std::string& text) {
  const auto body = Unseal(text);
  if (!body.ok()) return body.status();
  absl::Status status;
  ObjectReader reader(*body, "", status);
  Manifest manifest;
  manifest.job = reader.Text("job");
  manifest.model_config = reader.Text("model_config");
  manifest.mesh = ParseMesh(ObjectReader(reader.Object("mesh"), "mesh.", status));
  manifest.step = reader.Int("step", 0, kMaxStep);
  manifest.tokens = reader.Int("tokens", 0, kMaxCount);
  manifest.next_sample = reader.Int("next_sample", 0, kMaxCount);
  manifest.model_seed = reader.Hex("model_seed");
  manifest.data_seed = reader.Hex("data_seed");
  manifest.optimizer_steps = reader.Int("optimizer_steps", 0, kMaxCount);
  manifest.created = reader.Text("created");
  manifest.version = reader.Text("version");
  const json& files = reader.Array("files");
  std::set<std::string> names;
  for (size_t i = 0; i < files.size() && status.ok(); ++i) {
    manifest.files.push_back(ParseFile(files[i], reader.PathOf("files", i), status));
    if (!names.insert(manifest.files.back().name).second) {
      reader.Fail(absl::StrCat("files[", i, "].name"), "is taken");
    }
  }
  reader.Finish();
  if (status.ok()) status = CheckOverlaps(manifest);
  if (!status.ok()) return status;
  return manifest;
}

}  // namespace fedshard::checkpoint
