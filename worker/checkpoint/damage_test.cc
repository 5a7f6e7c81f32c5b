// A checkpoint that is truncated, flipped in any region, half-written, incomplete or of a newer
// format is recognised and named, and the newest good one is found behind it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/manifest_json.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/testing/fake_state.h"

namespace fedshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using fedshard::testing::IsOk;
using fedshard::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::StateOptions;

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    state_.mesh = {1, 1, 2};
    for (const int64_t step : {100, 200, 300}) {
      state_.step = step;
      ASSERT_EQ(testing::WriteAll(dir_.path(), state_).error, "");
    }
  }

  std::string Path(int64_t step) const { return dir_.path() + "/" + CheckpointName(step); }
  std::string FileOf(int64_t step) const { return Path(step) + "/group-0-shard-1.safetensors"; }

  static std::string Contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Flip(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
  }

  // Opening or verifying step 300 says so, with `name` and `what`; step 200 is found instead.
  void ExpectBad(const std::string& name, const std::string& what,
                 absl::StatusCode code = absl::StatusCode::kDataLoss) const {
    const auto reader = CheckpointReader::Open(Path(300));
    const absl::Status status = reader.ok() ? (*reader)->Verify() : reader.status();
    EXPECT_THAT(status, StatusIs(code, AllOf(HasSubstr(name), HasSubstr(what))));
    const auto found = NewestGood(dir_.path());
    ASSERT_THAT(found, IsOk());
    ASSERT_TRUE(found->entry.has_value());
    EXPECT_EQ(found->entry->step, 200);
    EXPECT_THAT(found->skipped, ElementsAre(AllOf(HasSubstr(name), HasSubstr(what))));
  }

  fedshard::testing::TempDir dir_;
  StateOptions state_;
};

TEST_F(Damage, NoneAtFirst) {
  const auto entries = ListCheckpoints(dir_.path());
  ASSERT_THAT(entries, IsOk());
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].step, 300);
  EXPECT_EQ((*entries)[2].path, Path(100));
  const auto found = NewestGood(dir_.path());
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->entry->step, 300);
  EXPECT_TRUE(found->skipped.empty());
  const auto checks = CheckFiles(Path(300));
  ASSERT_THAT(checks, IsOk());
  ASSERT_EQ(checks->size(), 3u);
  for (const FileCheck& check : *checks) {
    EXPECT_THAT(check.status, IsOk());
    EXPECT_EQ(check.bytes, static_cast<int64_t>(fs::file_size(Path(300) + "/" + check.name)));
  }
}

TEST_F(Damage, Truncated) {
  const auto size = static_cast<int64_t>(fs::file_size(FileOf(300)));
  for (const int64_t left : {int64_t{0}, int64_t{4}, int64_t{100}, size - 1}) {
    fs::resize_file(FileOf(300), left);
    ExpectBad(FileOf(300), "is truncated");
  }
  fs::resize_file(FileOf(300), size + 1);
  ExpectBad(FileOf(300), "has grown");
}

TEST_F(Damage, FlippedAnywhere) {
  const auto size = static_cast<int64_t>(fs::file_size(FileOf(300)));
  // The header's length, its text, and every chunk of data, padding included.
  std::vector<int64_t> places = {0, 7, 8, 60, size - 1};
  for (int64_t at = 100; at < size; at += 3001) places.push_back(at);
  for (const int64_t at : places) {
    Flip(FileOf(300), at);
    const auto reader = CheckpointReader::Open(Path(300));
    ASSERT_THAT(reader, IsOk());  // Sizes are right.
    EXPECT_THAT((*reader)->Verify(),
                StatusIs(absl::StatusCode::kDataLoss, StartsWith(FileOf(300) + ": ")))
        << "byte " << at << " of " << size;
    Flip(FileOf(300), at);
  }
  const auto reader = CheckpointReader::Open(Path(300));
  EXPECT_THAT((*reader)->Verify(), IsOk());
  Flip(FileOf(300), size - 1);
  ExpectBad(FileOf(300), "do not match their checksum");
}

// A read of undamaged parts works, and one of the damaged part gives no values.
TEST_F(Damage, FlippedChunkIsNotRead) {
  const auto file = SafetensorsReader::Open(FileOf(300));
  ASSERT_THAT(file, IsOk());
  // In the middle of the embedding's second moments.
  Flip(FileOf(300), (*file)->tensors().at("second_moment.0").offset + 5000);
  const auto reader = CheckpointReader::Open(Path(300));
  ASSERT_THAT(reader, IsOk());
  state_.moments = {"first_moment"};
  EXPECT_THAT(testing::CheckAs(**reader, state_, {1, 1, 1}), IsOk());
  state_.moments = {"second_moment"};
  EXPECT_THAT(testing::CheckAs(**reader, state_, {1, 1, 1}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bytes [")));
}

TEST_F(Damage, MissingFile) {
  fs::remove(FileOf(300));
  ExpectBad(FileOf(300), "is missing");
  fs::create_directory(FileOf(300));
  ExpectBad(FileOf(300), "is not a regular file");
}

TEST_F(Damage, SwappedFiles) {
  const std::string other = Path(300) + "/group-0-shard-0.safetensors";
  const std::string a = Contents(FileOf(300));
  const std::string b = Contents(other);
  std::ofstream(FileOf(300), std::ios::binary) << b;
  std::ofstream(other, std::ios::binary) << a;
  const auto reader = CheckpointReader::Open(Path(300));
  const absl::Status status = reader.ok() ? (*reader)->Verify() : reader.status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(Damage, ManifestGone) {
  fs::remove(Path(300) + "/manifest.json");
  EXPECT_THAT(CheckpointReader::Open(Path(300)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has no manifest.json")));
  // It is no checkpoint at all.
  const auto found = NewestGood(dir_.path());
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->entry->step, 200);
  EXPECT_TRUE(found->skipped.empty());
}

TEST_F(Damage, ManifestGarbled) {
  const std::string path = Path(300) + "/manifest.json";
  fs::resize_file(path, fs::file_size(path) / 2);
  ExpectBad(path, "is not a JSON object");
  std::ofstream(path) << "";
  ExpectBad(path, "is not a JSON object");
}

TEST_F(Damage, NewerFormat) {
  const std::string path = Path(300) + "/manifest.json";
  nlohmann::json manifest = nlohmann::json::parse(Contents(path));
  manifest["format"] = kFormatVersion + 1;
  manifest["files"] = "in another way";
  std::ofstream(path) << manifest.dump();
  ExpectBad(path, "format: 2 is newer", absl::StatusCode::kUnimplemented);
}

// The manifest is whole, but the file's header says something else: checksums of the manifest
// match, since a hostile writer computes them too.
TEST_F(Damage, HeaderUnlikeManifest) {
  const std::string path = Path(300) + "/manifest.json";
  nlohmann::json manifest = nlohmann::json::parse(Contents(path));
  nlohmann::json& tensor = manifest["files"][1]["tensors"][0];
  const std::string name = tensor["name"];
  manifest.erase("checksum");
  tensor["name"] = "parameters.99";
  std::ofstream(path) << Seal(manifest);
  ExpectBad(FileOf(300), "has no tensor \"parameters.99\"");
  tensor["name"] = name;
  tensor["dtype"] = "BF16";
  std::ofstream(path) << Seal(manifest);
  ExpectBad(FileOf(300), "the manifest says");
}

TEST_F(Damage, PartialFoldersAreNoCheckpoints) {
  fs::rename(Path(300), Path(300) + ".partial-a9");
  const auto entries = ListCheckpoints(dir_.path());
  ASSERT_THAT(entries, IsOk());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].step, 200);
}

TEST_F(Damage, EveryOneIsNamed) {
  for (const int64_t step : {100, 200, 300}) Flip(FileOf(step), 5000);
  const auto found = NewestGood(dir_.path());
  ASSERT_THAT(found, IsOk());
  EXPECT_FALSE(found->entry.has_value());
  EXPECT_THAT(found->skipped,
              ElementsAre(HasSubstr(Path(300)), HasSubstr(Path(200)), HasSubstr(Path(100))));
}

TEST_F(Damage, CheckFilesGoesOn) {
  fs::remove(Path(300) + "/group-0-shard-0.safetensors");
  Flip(FileOf(300), 5000);
  const auto checks = CheckFiles(Path(300));
  ASSERT_THAT(checks, IsOk());
  ASSERT_EQ(checks->size(), 3u);
  EXPECT_THAT((*checks)[0].status, IsOk());
  EXPECT_THAT((*checks)[1].status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is missing")));
  EXPECT_THAT((*checks)[2].status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bytes [")));
}

TEST_F(Damage, NoFolder) {
  EXPECT_THAT(CheckpointReader::Open(Path(999)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(CheckFiles(Path(999)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ListCheckpoints(dir_.path() + "/none"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(NewestGood(dir_.path() + "/none"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace fedshard::checkpoint
