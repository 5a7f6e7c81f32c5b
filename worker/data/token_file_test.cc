// Token files are read as written, and each kind of damage is refused with the file and field
// named.
#include "worker/data/token_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"

namespace fedshard::data {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

class TokenFileTest : public ::testing::Test {
 protected:
  template <typename T>
  void Write(const std::vector<T>& tokens, int64_t vocabulary) {
    const auto* bytes = reinterpret_cast<const char*>(tokens.data());
    const size_t size = tokens.size() * sizeof(T);
    std::ofstream(bin_, std::ios::binary).write(bytes, static_cast<std::streamsize>(size));
    char checksum[32];
    snprintf(checksum, sizeof checksum, "crc32:%08lx",
             crc32(0, reinterpret_cast<const Bytef*>(bytes), static_cast<uInt>(size)));
    sidecar_ = {{"dtype", sizeof(T) == 2 ? "uint16" : "uint32"},
                {"count", tokens.size()},
                {"vocabulary", vocabulary},
                {"tokenizer", "bytes"},
                {"checksum", checksum}};
    WriteSidecar();
  }
  void WriteSidecar() { std::ofstream(json_) << sidecar_; }
  void Refused(absl::StatusCode code, const std::string& part) {
    EXPECT_THAT(TokenFile::Open(bin_, true),
                StatusIs(code, AllOf(HasSubstr("train."), HasSubstr(part))));
  }

  testing::TempDir dir_;
  std::string bin_ = dir_.path() + "/train.bin", json_ = dir_.path() + "/train.json";
  json sidecar_;
};

TEST_F(TokenFileTest, ReadsBothWidths) {
  Write(std::vector<uint16_t>{1, 2, 65535, 4}, 65536);
  int64_t out[2];
  auto file = TokenFile::Open(bin_, true);
  ASSERT_THAT(file, testing::IsOk());
  (*file)->Read(1, 2, out);
  EXPECT_EQ(out[0], 2);
  EXPECT_EQ(out[1], 65535);
  EXPECT_EQ((*file)->info().count, 4);
  Write(std::vector<uint32_t>{7, 4'000'000'000}, 4'100'000'000);
  file = TokenFile::Open(bin_, true);
  ASSERT_THAT(file, testing::IsOk());
  (*file)->Read(1, 1, out);
  EXPECT_EQ(out[0], 4'000'000'000);
}

TEST_F(TokenFileTest, Damage) {
  Write(std::vector<uint16_t>(100, 5), 256);
  std::filesystem::resize_file(bin_, 150);
  Refused(absl::StatusCode::kDataLoss, "has 150 bytes");
  Write(std::vector<uint16_t>(100, 5), 256);
  std::fstream(bin_, std::ios::in | std::ios::out | std::ios::binary).put('x');
  Refused(absl::StatusCode::kDataLoss, "checksum");
  EXPECT_THAT(TokenFile::Open(bin_, false), testing::IsOk()) << "not looked at without verify";
  Write(std::vector<uint16_t>{1, 2, 300}, 256);
  Refused(absl::StatusCode::kDataLoss, "token 2 is 300");
  Write(std::vector<uint16_t>{}, 256);
  Refused(absl::StatusCode::kInvalidArgument, "count");
}

TEST_F(TokenFileTest, Sidecar) {
  Write(std::vector<uint16_t>(10, 5), 256);
  const json good = sidecar_;
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, json>>{{"dtype", "float"},
                                                 {"dtype", 3},
                                                 {"count", -1},
                                                 {"count", "ten"},
                                                 {"vocabulary", 0},
                                                 {"count", 18446744073709551615u},
                                                 {"tokenizer", nullptr},
                                                 {"checksum", 5}}) {
    sidecar_ = good;
    sidecar_[field] = value;
    WriteSidecar();
    Refused(absl::StatusCode::kInvalidArgument, field);
  }
  for (const char* field : {"dtype", "count", "vocabulary", "tokenizer", "checksum"}) {
    sidecar_ = good;
    sidecar_.erase(field);
    WriteSidecar();
    Refused(absl::StatusCode::kInvalidArgument, field);
  }
  std::ofstream(json_) << "not json";
  Refused(absl::StatusCode::kInvalidArgument, "JSON");
  std::filesystem::remove(json_);
  Refused(absl::StatusCode::kNotFound, "train.json");
}

TEST_F(TokenFileTest, FitsTheModelAndTheSample) {
  Write(std::vector<uint16_t>(33, 5), 256);
  const auto file = TokenFile::Open(bin_, true);
  ASSERT_THAT(file, testing::IsOk());
  EXPECT_THAT((*file)->CheckFits(256, 33), testing::IsOk());
  EXPECT_THAT((*file)->CheckFits(255, 33),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("train.bin"), HasSubstr("256"))));
  EXPECT_THAT(
      (*file)->CheckFits(256, 34),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("train.bin"), HasSubstr("34"))));
}

TEST_F(TokenFileTest, Names) {
  EXPECT_THAT(TokenFile::Open(dir_.path() + "/none.bin", true),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.bin")));
  EXPECT_THAT(TokenFile::Open(dir_.path() + "/train.txt", true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(".bin")));
}

TEST_F(TokenFileTest, NotAFile) {
  std::filesystem::create_directory(bin_);
  Refused(absl::StatusCode::kInvalidArgument, "train.bin: is not a regular file");
  std::filesystem::remove(bin_);
  ASSERT_EQ(mkfifo(bin_.c_str(), 0600), 0);
  Refused(absl::StatusCode::kInvalidArgument, "train.bin: is not a regular file");
}

}  // namespace
}  // namespace fedshard::data
