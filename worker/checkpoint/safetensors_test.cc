// Safetensors files come back as they were written, range by range, and a file that is truncated,
// garbled or hostile is refused with its name and what is wrong, before anything is read from it.
#include "worker/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"

namespace fedshard::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Safetensors : public ::testing::Test {
 protected:
  std::string Path() const { return dir_.path() + "/model.safetensors"; }

  void WriteRaw(const std::string& bytes) const {
    std::ofstream(Path(), std::ios::binary) << bytes;
  }
  // A file of this header and `data_bytes` of data.
  void WriteFile(const std::string& header, size_t data_bytes) const {
    const uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    WriteRaw(bytes + header + std::string(data_bytes, '\1'));
  }
  void ExpectDamaged(const std::string& what) const {
    EXPECT_THAT(SafetensorsReader::Open(Path()),
                testing::StatusIs(absl::StatusCode::kDataLoss,
                                  AllOf(StartsWith(Path() + ": "), HasSubstr(what))));
  }
  std::string Contents() const {
    std::ifstream file(Path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  testing::TempDir dir_;
};

std::vector<float> Ramp(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 251) - 100;
  return values;
}

TEST_F(Safetensors, ComesBackAsWritten) {
  constexpr int64_t kLong = 200'000;  // Several conversion buffers.
  auto writer = SafetensorsWriter::Create(Path(),
                                          {{"b", DType::kF32, {2, 3}},
                                           {"empty", DType::kF32, {0, 7}},
                                           {"scalar", DType::kF32, {}},
                                           {"half", DType::kF16, {kLong}},
                                           {"brain", DType::kBF16, {4, kLong / 4}}},
                                          {{"format", "pt"}});
  ASSERT_THAT(writer, testing::IsOk());
  const std::vector<float> values = Ramp(kLong);
  ASSERT_THAT((*writer)->WriteFloats(values.data(), 4), testing::IsOk());
  ASSERT_THAT((*writer)->WriteFloats(values.data() + 4, 2), testing::IsOk());
  ASSERT_THAT((*writer)->WriteBytes(values.data() + 7, 4), testing::IsOk());
  ASSERT_THAT((*writer)->WriteFloats(values.data(), kLong), testing::IsOk());
  ASSERT_THAT((*writer)->WriteFloats(values.data(), kLong), testing::IsOk());
  ASSERT_THAT((*writer)->Finish(), testing::IsOk());

  const auto reader = SafetensorsReader::Open(Path());
  ASSERT_THAT(reader, testing::IsOk());
  EXPECT_EQ((*reader)->metadata().at("format"), "pt");
  EXPECT_EQ((*reader)->tensors().size(), 5u);
  EXPECT_EQ((*reader)->tensors().at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*reader)->tensors().at("b").offset % 8, 0);
  EXPECT_EQ((*reader)->tensors().at("empty").elements(), 0);
  EXPECT_EQ((*reader)->file_bytes(), std::filesystem::file_size(Path()));
  std::vector<float> back(kLong);
  ASSERT_THAT((*reader)->ReadFloats("b", 0, 6, back.data()), testing::IsOk());
  EXPECT_TRUE(std::equal(back.begin(), back.begin() + 6, values.begin()));
  ASSERT_THAT((*reader)->ReadFloats("scalar", 0, 1, back.data()), testing::IsOk());
  EXPECT_EQ(back[0], values[7]);
  for (const char* name : {"half", "brain"}) {
    ASSERT_THAT((*reader)->ReadFloats(name, 0, kLong, back.data()), testing::IsOk());
    EXPECT_EQ(back, values) << name;
  }
}

TEST_F(Safetensors, ReadsRanges) {
  auto writer = SafetensorsWriter::Create(
      Path(), {{"half", DType::kF16, {10, 10}}, {"float", DType::kF32, {100}}}, {});
  const std::vector<float> values = Ramp(100);
  ASSERT_THAT((*writer)->WriteFloats(values.data(), 100), testing::IsOk());
  ASSERT_THAT((*writer)->WriteFloats(values.data(), 100), testing::IsOk());
  ASSERT_THAT((*writer)->Finish(), testing::IsOk());
  const auto reader = SafetensorsReader::Open(Path());
  ASSERT_THAT(reader, testing::IsOk());
  for (const char* name : {"half", "float"}) {
    float back[3] = {0, 0, 77};
    ASSERT_THAT((*reader)->ReadFloats(name, 98, 2, back), testing::IsOk());
    EXPECT_EQ(back[0], values[98]);
    EXPECT_EQ(back[1], values[99]);
    EXPECT_EQ(back[2], 77);
    EXPECT_THAT((*reader)->ReadFloats(name, 0, 0, nullptr), testing::IsOk());
    for (const auto& [begin, count] : {std::pair{99, 2}, {-1, 1}, {0, -1}, {101, 0}}) {
      EXPECT_THAT((*reader)->ReadFloats(name, begin, count, back),
                  testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
    }
  }
  float value;
  EXPECT_THAT((*reader)->ReadFloats("none", 0, 1, &value),
              testing::StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"none\"")));
  EXPECT_THAT((*reader)->ReadBytes((*reader)->file_bytes() - 3, 4, &value),
              testing::StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(Safetensors, ReadsAHeaderOfAnotherWriter) {
  // Unordered, padded, with an unknown key in a tensor's description.
  WriteFile(R"({"z":{"dtype":"BF16","shape":[2],"data_offsets":[0,4],"x":1},)"
            R"("a":{"shape":[1,1],"data_offsets":[4,8],"dtype":"F32"},"__metadata__":{}}     )",
            8);
  const auto reader = SafetensorsReader::Open(Path());
  ASSERT_THAT(reader, testing::IsOk());
  EXPECT_EQ((*reader)->tensors().at("a").offset, (*reader)->file_bytes() - 4);
}

TEST_F(Safetensors, RefusesTruncation) {
  auto writer = SafetensorsWriter::Create(Path(), {{"x", DType::kF32, {4}}}, {});
  const std::vector<float> values = Ramp(4);
  ASSERT_THAT((*writer)->WriteFloats(values.data(), 4), testing::IsOk());
  ASSERT_THAT((*writer)->Finish(), testing::IsOk());
  const std::string whole = Contents();
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteRaw(whole.substr(0, size));
    EXPECT_THAT(SafetensorsReader::Open(Path()),
                testing::StatusIs(absl::StatusCode::kDataLoss, HasSubstr(Path())))
        << size;
  }
  WriteRaw(whole + "x");
  ExpectDamaged("has 1 bytes after its last tensor");
}

TEST_F(Safetensors, RefusesGarbledHeaders) {
  const auto one = [](const std::string& tensor) { return R"({"x":)" + tensor + "}"; };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not a JSON object"},
      {"[]", "not a JSON object"},
      {"{\"x\":", "not a JSON object"},
      {one("1"), "\"x\": is not described by an object"},
      {one("{}"), "dtype is missing"},
      {one(R"({"dtype":"F32","data_offsets":[0,8]})"), "shape is missing"},
      {one(R"({"dtype":"F32","shape":[2]})"), "data_offsets"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"), "data_offsets"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"), "data_offsets"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,1e1]})"), "data_offsets"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"), "8 bytes of data"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "takes 8 bytes"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "takes 12 bytes"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "no size"},
      {one(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,8]})"), "no size"},
      {one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"), "no size"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), "too large"},
      {R"({"__metadata__":[]})", "__metadata__"},
      {R"({"__metadata__":{"a":1}})", "__metadata__"},
  };
  for (const auto& [header, what] : cases) {
    SCOPED_TRACE(header);
    WriteFile(header, 8);
    ExpectDamaged(what);
  }
}

TEST_F(Safetensors, RefusesOverlapsGapsAndRepeatedNames) {
  const std::string f32 = R"({"dtype":"F32","shape":[1],"data_offsets":)";
  WriteFile(R"({"a":)" + f32 + R"([0,4]},"b":)" + f32 + "[2,6]}}", 6);
  ExpectDamaged("\"b\" overlaps");
  WriteFile(R"({"a":)" + f32 + R"([0,4]},"b":)" + f32 + "[0,4]}}", 4);
  ExpectDamaged("overlaps");
  WriteFile(R"({"a":)" + f32 + R"([0,4]},"b":)" + f32 + "[8,12]}}", 12);
  ExpectDamaged("\"b\" follows a gap");
  WriteFile(R"({"b":)" + f32 + "[4,8]}}", 8);
  ExpectDamaged("\"b\" follows a gap");
  WriteFile(R"({"a":)" + f32 + R"([0,4]},"a":)" + f32 + "[4,8]}}", 8);
  ExpectDamaged("\"a\" is there twice");
}

TEST_F(Safetensors, RefusesHugeHeaderLengths) {
  for (const uint64_t length :
       {uint64_t{1} << 25, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}, uint64_t{1000}}) {
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    WriteRaw(bytes + "{}");
    ExpectDamaged("header");
  }
}

TEST_F(Safetensors, SurvivesDeepNesting) {
  WriteFile(R"({"a":)" + std::string(500'000, '['), 0);
  ExpectDamaged("not a JSON object");
  WriteFile(R"({"a":{"dtype":"F32","shape":)" + std::string(500'000, '[') +
                std::string(500'000, ']') + R"(,"data_offsets":[0,0]}})",
            0);
  ExpectDamaged("no size");
}

// Whatever opens can be read in full: every check is made before.
TEST_F(Safetensors, OpensNoDamagedHeaderThatItCannotRead) {
  WriteFile(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
            R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]},"__metadata__":{"x":"y"}})",
            24);
  const std::string whole = Contents();
  const std::string alphabet = R"({}[]":,0123456789-.eFBab)" + std::string(1, '\xff');
  std::mt19937 random(1);
  int opened = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = whole;
    for (uint32_t change = 0; change <= random() % 3; ++change) {
      damaged[random() % (whole.size() - 24)] = alphabet[random() % alphabet.size()];
    }
    WriteRaw(damaged);
    const auto reader = SafetensorsReader::Open(Path());
    if (!reader.ok()) continue;
    ++opened;
    for (const auto& [name, tensor] : (*reader)->tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      EXPECT_THAT((*reader)->ReadFloats(name, 0, tensor.elements(), values.data()),
                  testing::IsOk());
    }
  }
  EXPECT_GT(opened, 10);   // Other names, say.
  EXPECT_LT(opened, 200);  // Most damage shows.
}

TEST_F(Safetensors, NamesTypesThatItDoesNotRead) {
  WriteFile(R"({"codes":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4);
  EXPECT_THAT(SafetensorsReader::Open(Path()),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                AllOf(HasSubstr("\"codes\""), HasSubstr("I32"))));
}

TEST_F(Safetensors, RefusesWhatIsNoFile) {
  EXPECT_THAT(SafetensorsReader::Open(Path()),
              testing::StatusIs(absl::StatusCode::kNotFound, StartsWith(Path())));
  EXPECT_THAT(SafetensorsReader::Open(dir_.path()),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("regular file")));
}

TEST_F(Safetensors, NoticesAFileThatShrinksWhileOpen) {
  auto writer = SafetensorsWriter::Create(Path(), {{"x", DType::kF32, {4}}}, {});
  const std::vector<float> values = Ramp(4);
  ASSERT_THAT((*writer)->WriteFloats(values.data(), 4), testing::IsOk());
  ASSERT_THAT((*writer)->Finish(), testing::IsOk());
  const auto reader = SafetensorsReader::Open(Path());
  ASSERT_THAT(reader, testing::IsOk());
  std::filesystem::resize_file(Path(), 20);
  float back[4];
  EXPECT_THAT((*reader)->ReadFloats("x", 0, 4, back),
              testing::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("shorter")));
}

TEST_F(Safetensors, TheWriterTakesExactlyWhatWasAnnounced) {
  auto writer =
      SafetensorsWriter::Create(Path(), {{"x", DType::kBF16, {4}}, {"y", DType::kBF16, {4}}}, {});
  const std::vector<float> values = Ramp(8);
  EXPECT_THAT((*writer)->WriteFloats(values.data(), 5),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"x\"")));
  ASSERT_THAT((*writer)->WriteFloats(values.data(), 4), testing::IsOk());
  EXPECT_THAT((*writer)->Finish(),
              testing::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"y\"")));
  ASSERT_THAT((*writer)->WriteFloats(values.data(), 4), testing::IsOk());
  EXPECT_THAT((*writer)->WriteFloats(values.data(), 1),
              testing::StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT((*writer)->Finish(), testing::IsOk());

  EXPECT_THAT(
      SafetensorsWriter::Create(Path(), {{"x", DType::kF32, {1}}, {"x", DType::kF32, {1}}}, {}),
      testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"x\" is taken")));
  EXPECT_THAT(SafetensorsWriter::Create(dir_.path() + "/none/x", {}, {}),
              testing::StatusIs(absl::StatusCode::kInternal, HasSubstr("/none/x")));
}

}  // namespace
}  // namespace fedshard::checkpoint
