// Manifests come back as they were written; a garbled, hostile or newer one is refused with the
// field's name, and no flipped bit turns one manifest into another.
#include "worker/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/testing/status_matchers.h"
#include "worker/checkpoint/manifest_json.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::StartsWith;
using testing::StatusIs;

Manifest Example() {
  Manifest manifest;
  manifest.job = "job \"with\" quotes\n";
  manifest.model_config = "{\"vocab_size\": 10}";
  manifest.mesh = {2, 3, 4};
  manifest.step = 400;
  manifest.tokens = int64_t{1} << 60;
  manifest.next_sample = 12;
  manifest.model_seed = UINT64_MAX;
  manifest.data_seed = 5;
  manifest.optimizer_steps = 398;
  manifest.created = "2026-01-31T12:00:00.000Z";
  manifest.version = "0.1.0";
  ManifestFile file;
  file.name = "group-0-shard-1.safetensors";
  file.bytes = 1000;
  file.chunk_bytes = 600;
  file.chunk_checksums = {UINT64_MAX, 0};
  file.tensors = {
      {"parameters.0", "parameters", 0, "F32", 100, {{"norm", 0, 10, 0}, {"embed", 30, 60, 10}}},
      {"first_moment.0", "first_moment", 1, "BF16", 200, {{"norm", 0, 10, 0}}}};
  manifest.files = {file};
  return manifest;
}

TEST(Manifest, ComesBackAsWritten) {
  const std::string text = ToJson(Example());
  const auto parsed = ParseManifest(text);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(ToJson(*parsed), text);
  EXPECT_EQ(parsed->mesh, (Mesh{2, 3, 4}));
  EXPECT_EQ(parsed->model_seed, UINT64_MAX);
  EXPECT_EQ(parsed->tokens, int64_t{1} << 60);
  ASSERT_EQ(parsed->files.size(), 1u);
  EXPECT_EQ(parsed->files[0].chunk_checksums, (std::vector<uint64_t>{UINT64_MAX, 0}));
  EXPECT_EQ(parsed->files[0].tensors[0].pieces[1].parameter, "embed");
  EXPECT_EQ(parsed->files[0].tensors[0].pieces[1].begin, 30);
  EXPECT_EQ(parsed->files[0].tensors[1].group, 1);

  const auto file = ParseManifestFile(ToJson(Example().files[0]));
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(ToJson(*file), ToJson(Example().files[0]));
}

TEST(Manifest, NoBitFlipMakesAnotherManifest) {
  const std::string text = ToJson(Example());
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string garbled = text;
      garbled[i] = static_cast<char>(garbled[i] ^ (1 << bit));
      const auto parsed = ParseManifest(garbled);
      // White space may change into other white space.
      if (parsed.ok()) {
        EXPECT_EQ(ToJson(*parsed), text) << "byte " << i << " bit " << bit;
      }
    }
  }
}

TEST(Manifest, EveryPrefixIsRefused) {
  const std::string text = ToJson(Example());
  for (size_t length = 0; length + 2 < text.size(); ++length) {
    EXPECT_THAT(ParseManifest(text.substr(0, length)), StatusIs(absl::StatusCode::kDataLoss));
  }
}

// Changed and sealed again: what a hostile writer, or a bug, could make.
TEST(Manifest, RefusesByField) {
  const auto file = [](json& m) -> json& { return m["files"][0]; };
  const auto tensor = [](json& m) -> json& { return m["files"][0]["tensors"][0]; };
  const auto piece = [](json& m) -> json& { return m["files"][0]["tensors"][0]["pieces"][1]; };
  const std::vector<std::pair<std::string, std::function<void(json&)>>> cases = {
      {"job: is missing", [](json& m) { m.erase("job"); }},
      {"job: must be a string", [](json& m) { m["job"] = 5; }},
      {"step: must be a whole number from 0", [](json& m) { m["step"] = -1; }},
      {"step: must be", [](json& m) { m["step"] = 1.5; }},
      {"step: must be", [](json& m) { m["step"] = UINT64_MAX; }},
      {"tokens: must be", [](json& m) { m["tokens"] = "1"; }},
      {"surprise: is not a field", [](json& m) { m["surprise"] = 1; }},
      {"model_seed: must be 16 hex digits", [](json& m) { m["model_seed"] = 17; }},
      {"data_seed: must be 16 hex digits", [](json& m) { m["data_seed"] = "xyz"; }},
      {"mesh: must be an object", [](json& m) { m["mesh"] = json::array(); }},
      {"mesh.shards: must be", [](json& m) { m["mesh"]["shards"] = 0; }},
      {"mesh: has more than", [](json& m) { m["mesh"]["shards"] = 1 << 20; }},
      {"files: must be a list", [](json& m) { m["files"] = "none"; }},
      {"files[0]: is not an object", [](json& m) { m["files"][0] = 3; }},
      {"files[1].name: is taken", [](json& m) { m["files"].push_back(m["files"][0]); }},
      {"files[0].name: must be a plain", [&](json& m) { file(m)["name"] = "../passwd"; }},
      {"files[0].name: must be a plain", [&](json& m) { file(m)["name"] = "a/b"; }},
      {"files[0].name: must be a plain", [&](json& m) { file(m)["name"] = ".."; }},
      {"files[0].name: must be a plain", [&](json& m) { file(m)["name"] = ""; }},
      {"files[0].name: must be a plain", [&](json& m) { file(m)["name"] = "manifest.json"; }},
      {"files[0].bytes: must be", [&](json& m) { file(m)["bytes"] = -5; }},
      {"files[0].chunk_bytes: must be", [&](json& m) { file(m)["chunk_bytes"] = 0; }},
      {"files[0].chunk_bytes: must be", [&](json& m) { file(m)["chunk_bytes"] = 1ll << 40; }},
      {"files[0].chunk_checksums: has 2", [&](json& m) { file(m)["bytes"] = 1201; }},
      {"files[0].chunk_checksums[1]: must", [&](json& m) { file(m)["chunk_checksums"][1] = 0; }},
      {"files[0].tensors[1].elements: more than",
       [&](json& m) { file(m)["tensors"][1]["elements"] = 301; }},
      {"files[0].tensors[1].name: is taken",
       [&](json& m) { file(m)["tensors"][1]["name"] = "parameters.0"; }},
      {"files[0].tensors[0].elements: must be", [&](json& m) { tensor(m)["elements"] = -1; }},
      {"files[0].tensors[0].dtype: must be", [&](json& m) { tensor(m)["dtype"] = "F64"; }},
      {"files[0].tensors[0].kind: must be", [&](json& m) { tensor(m)["kind"] = "a.b"; }},
      {"files[0].tensors[0].group: must be", [&](json& m) { tensor(m)["group"] = -1; }},
      {"files[0].tensors[0].pieces[1].length: the piece ends at 101, beyond",
       [&](json& m) { piece(m)["length"] = 91; }},
      {"files[0].tensors[0].pieces[1].length: must", [&](json& m) { piece(m)["length"] = 0; }},
      {"files[0].tensors[0].pieces[1].length: must",
       [&](json& m) { piece(m)["length"] = INT64_MAX; }},
      {"files[0].tensors[0].pieces[1].begin: must", [&](json& m) { piece(m)["begin"] = -1; }},
      {"files[0].tensors[0].pieces[1].offset: overlaps", [&](json& m) { piece(m)["offset"] = 9; }},
      {"files[0].tensors[0].pieces[1].parameter: is empty",
       [&](json& m) { piece(m)["parameter"] = ""; }},
      {"files[0].tensors[0].pieces[1].more: is not a field",
       [&](json& m) { piece(m)["more"] = 1; }},
      {"files: parameters of norm in group 0: element 5 is stored twice",
       [&](json& m) {
         piece(m)["parameter"] = "norm";
         piece(m)["begin"] = 5;
       }},
  };
  const std::string text = ToJson(Example());
  for (const auto& [message, change] : cases) {
    json manifest = json::parse(text);
    manifest.erase("checksum");
    change(manifest);
    EXPECT_THAT(ParseManifest(Seal(manifest)),
                StatusIs(absl::StatusCode::kDataLoss, StartsWith(message)));
  }
}

TEST(Manifest, RefusesWhatIsNone) {
  json manifest = json::parse(ToJson(Example()));
  manifest["step"] = 401;
  EXPECT_THAT(ParseManifest(manifest.dump()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum: does not match")));
  manifest["format"] = kFormatVersion + 1;
  EXPECT_THAT(ParseManifest(manifest.dump()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("format: 2 is newer than 1")));
  manifest["format"] = 0;
  EXPECT_THAT(ParseManifest(manifest.dump()), StatusIs(absl::StatusCode::kDataLoss));
  manifest.erase("format");
  EXPECT_THAT(ParseManifest(manifest.dump()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("format: is missing")));
  EXPECT_THAT(ParseManifest(""), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ParseManifest("[]"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ParseManifest("{\"job\": \"\xff\"}"), StatusIs(absl::StatusCode::kDataLoss));
  // Deeper than any stack.
  EXPECT_THAT(ParseManifest("{\"a\":" + std::string(1'000'000, '[')),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(
      ParseManifest("{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}"),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("nested too deeply")));
}

TEST(Manifest, NamesOfCheckpoints) {
  EXPECT_EQ(CheckpointName(400), "step-00000400");
  EXPECT_EQ(CheckpointName(123'456'789'012), "step-123456789012");
  for (const int64_t step : {int64_t{0}, int64_t{400}, int64_t{123'456'789'012}}) {
    EXPECT_EQ(StepOfName(CheckpointName(step)), step);
  }
  for (const char* name : {"step-400", "step-", "step-0000040x", "step--0000001", "step-00000400.a",
                           "000000000400", "step-99999999999999999999"}) {
    EXPECT_EQ(StepOfName(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace fedshard::checkpoint
