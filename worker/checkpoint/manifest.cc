#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "worker/checkpoint/manifest_json.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;

constexpr char kNamePrefix[] = "step-";

json FileToJson(const ManifestFile& file) {
  json checksums = json::array();
  for (const uint64_t checksum : file.chunk_checksums) checksums.push_back(HexText(checksum));
  json tensors = json::array();
  for (const FlatTensor& tensor : file.tensors) {
    json pieces = json::array();
    for (const Piece& piece : tensor.pieces) {
      pieces.push_back({{"parameter", piece.parameter},
                        {"begin", piece.begin},
                        {"length", piece.length},
                        {"offset", piece.offset}});
    }
    tensors.push_back({{"name", tensor.name},
                       {"kind", tensor.kind},
                       {"group", tensor.group},
                       {"dtype", tensor.dtype},
                       {"elements", tensor.elements},
                       {"pieces", std::move(pieces)}});
  }
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"chunk_bytes", file.chunk_bytes},
          {"chunk_checksums", std::move(checksums)},
          {"tensors", std::move(tensors)}};
}

}  // namespace

std::string ToJson(const Manifest& manifest) {
  json files = json::array();
  for (const ManifestFile& file : manifest.files) files.push_back(FileToJson(file));
  return Seal({{"job", manifest.job},
               {"model_config", manifest.model_config},
               {"mesh",
                {{"groups", manifest.mesh.groups},
                 {"replicas", manifest.mesh.replicas},
                 {"shards", manifest.mesh.shards}}},
               {"step", manifest.step},
               {"tokens", manifest.tokens},
               {"next_sample", manifest.next_sample},
               {"model_seed", HexText(manifest.model_seed)},
               {"data_seed", HexText(manifest.data_seed)},
               {"optimizer_steps", manifest.optimizer_steps},
               {"created", manifest.created},
               {"version", manifest.version},
               {"files", std::move(files)}});
}

std::string ToJson(const ManifestFile& file) { return Seal(FileToJson(file)); }

std::string CheckpointName(int64_t step) {
  char text[40];
  snprintf(text, sizeof text, "%s%08lld", kNamePrefix, static_cast<long long>(step));
  return text;
}

std::optional<int64_t> StepOfName(const std::string& name) {
  constexpr size_t kPrefix = sizeof kNamePrefix - 1;
  constexpr size_t kMaxDigits = 18;  // Of any 64-bit number.
  if (name.compare(0, kPrefix, kNamePrefix) != 0) return std::nullopt;
  const std::string digits = name.substr(kPrefix);
  if (digits.empty() || digits.size() > kMaxDigits ||
      !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  const int64_t step = std::stoll(digits);
  // One name for each step: "step-5" is not a checkpoint's.
  return CheckpointName(step) == name ? std::optional<int64_t>(step) : std::nullopt;
}

}  // namespace fedshard::checkpoint
