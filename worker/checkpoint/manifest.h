// What a checkpoint consists of: manifest.json in the checkpoint's folder, written last. A folder
// without a readable manifest is no checkpoint. Plain data; also where checkpoints lie in a job's
// checkpoint directory.
//
//   DIRECTORY/step-00000400/manifest.json
//                           group-0-shard-1.safetensors   parameters (group 0 only) and moments
//
// Parameters are stored once: groups and replicas are bitwise equal after a committed round.
// Moments are stored per group, from its replica 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mesh.h"

namespace fedshard::checkpoint {

inline constexpr int kFormatVersion = 1;
inline constexpr char kManifestName[] = "manifest.json";
inline constexpr int64_t kMaxManifestBytes = 256 << 20;

// Elements [begin, begin + length) of a logical parameter, and where they lie.
struct Piece {
  std::string parameter;
  int64_t begin = 0;
  int64_t length = 0;
  int64_t offset = 0;  // In elements from the start of the stored tensor.
};

// A flat tensor of one file.
struct FlatTensor {
  std::string name;  // In the file, "first_moment.3".
  std::string kind;  // "parameters", "first_moment", "second_moment", …
  int32_t group = 0;
  std::string dtype;  // "F32" or "BF16".
  int64_t elements = 0;
  std::vector<Piece> pieces;  // By offset; padding belongs to none.
};

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  int64_t chunk_bytes = 0;
  std::vector<uint64_t> chunk_checksums;  // Fingerprint64 of each chunk of the file.
  std::vector<FlatTensor> tensors;
};

struct Manifest {
  std::string job;
  std::string model_config;  // Text of config.json.
  Mesh mesh;
  int64_t step = 0;         // Committed optimizer steps of one group.
  int64_t tokens = 0;       // Committed tokens of all groups.
  int64_t next_sample = 0;  // The first sample that no committed round used.
  uint64_t model_seed = 0;
  uint64_t data_seed = 0;
  int64_t optimizer_steps = 0;  // The optimizer's own count: fewer when steps were skipped.
  std::string created;          // RFC 3339.
  std::string version;          // Of fedshard.
  std::vector<ManifestFile> files;
};

// Both texts carry a checksum of themselves, so that a garbled one is never taken for another.
std::string ToJson(const Manifest& manifest);
// Strict, since files are untrusted: sizes, file names, pieces outside their tensor or over each
// other. DATA_LOSS names the field ("files[2].tensors[0].pieces[1].length: …"); UNIMPLEMENTED for a
// newer format version.
absl::StatusOr<Manifest> ParseManifest(const std::string& json);

// One file's part of a manifest: what each writer leaves for the one that writes the manifest.
std::string ToJson(const ManifestFile& file);
absl::StatusOr<ManifestFile> ParseManifestFile(const std::string& json);

// "step-00000400" for 400.
std::string CheckpointName(int64_t step);
// The step of such a name; nothing for any other.
std::optional<int64_t> StepOfName(const std::string& name);

}  // namespace fedshard::checkpoint
