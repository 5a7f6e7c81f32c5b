// Merged checkpoints hold the same state in one file, and comparing two checkpoints finds each
// difference and no other, whatever meshes wrote them.
#include "worker/checkpoint/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/compare.h"
#include "worker/checkpoint/testing/fake_state.h"

namespace fedshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using fedshard::testing::IsOk;
using fedshard::testing::StatusIs;
using ::testing::HasSubstr;
using testing::StateOptions;

class Merging : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointReader> Written(const StateOptions& state, const std::string& folder) {
    const WriteResult result = testing::WriteAll(dir_.path() + "/" + folder, state);
    EXPECT_EQ(result.error, "");
    return Opened(result.path);
  }
  static std::unique_ptr<CheckpointReader> Opened(const std::string& path) {
    auto reader = CheckpointReader::Open(path);
    EXPECT_THAT(reader, IsOk());
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  std::string Out() const { return dir_.path() + "/out"; }
  // Elements that differ, in all parameters.
  static int64_t Different(const CheckpointReader& a, const CheckpointReader& b) {
    const auto differences = Compare(a, b);
    EXPECT_THAT(differences, IsOk());
    int64_t count = 0;
    for (const ParameterDifference& difference : *differences) count += difference.different;
    return count;
  }

  fedshard::testing::TempDir dir_;
};

TEST_F(Merging, HoldsTheSame) {
  StateOptions state;
  state.mesh = {2, 2, 3};
  state.moment_dtype = "BF16";
  const auto source = Written(state, "a");
  for (const int32_t group : {0, 1}) {
    const auto path = Merge(*source, group, Out());
    ASSERT_THAT(path, IsOk());
    EXPECT_EQ(*path, Out() + "/step-00000400");
    const auto merged = Opened(*path);
    EXPECT_THAT(merged->Verify(), IsOk());
    EXPECT_EQ(merged->manifest().mesh, Mesh{});
    EXPECT_EQ(merged->manifest().tokens, source->manifest().tokens);
    EXPECT_EQ(merged->manifest().files.size(), 1u);
    const auto parameters = merged->Source("parameters", 0);
    const auto moments = merged->Source("first_moment", 0);
    float value = 0;
    ASSERT_THAT((*parameters)->Read("lm_head.weight", 5000, 1, &value), IsOk());
    EXPECT_EQ(value, testing::ValueOf("parameters", 0, "lm_head.weight", 5000, "F32"));
    ASSERT_THAT((*moments)->Read("lm_head.weight", 5000, 1, &value), IsOk());
    EXPECT_EQ(value, testing::ValueOf("first_moment", group, "lm_head.weight", 5000, "BF16"));
    if (group == 0) {
      StateOptions alone = state;
      alone.mesh = {1, 1, 1};
      EXPECT_THAT(testing::CheckAs(*merged, alone, {1, 1, 4}), IsOk());
    }
    fs::remove_all(Out());
  }
}

TEST_F(Merging, RefusesWhatItCannotDo) {
  StateOptions state;
  state.mesh = {2, 1, 1};
  const auto source = Written(state, "a");
  EXPECT_THAT(Merge(*source, 2, Out()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no group 2")));
  EXPECT_FALSE(fs::exists(Out()));
  ASSERT_THAT(Merge(*source, 1, Out()), IsOk());
  EXPECT_THAT(Merge(*source, 1, Out()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("step-00000400")));
  EXPECT_THAT(Merge(*source, 0, dir_.path() + "/a"), StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(Merging, DamageIsNotCopied) {
  StateOptions state;
  const auto source = Written(state, "a");
  const std::string path = source->path() + "/group-0-shard-0.safetensors";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(30'000);
  file.write("\xff\xfe\xfd\xfc", 4);
  file.close();
  EXPECT_THAT(Merge(*source, 0, Out()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path + ": bytes [")));
  EXPECT_TRUE(fs::is_empty(Out()));
}

TEST_F(Merging, ComparesAcrossMeshes) {
  StateOptions state;
  state.mesh = {1, 1, 3};
  const auto a = Written(state, "a");
  state.mesh = {1, 2, 4};
  const auto b = Written(state, "b");
  EXPECT_EQ(Different(*a, *b), 0);
  const auto same = Compare(*a, *b);
  EXPECT_EQ(same->size(), 3u * 21);  // Kinds times parameters.
  state.salt = 1;
  const auto c = Written(state, "c");
  const auto differences = Compare(*a, *c);
  ASSERT_THAT(differences, IsOk());
  for (const ParameterDifference& difference : *differences) {
    EXPECT_GT(difference.different, difference.elements_a * 9 / 10) << difference.parameter;
    EXPECT_GT(difference.max_absolute, 0) << difference.parameter;
    EXPECT_TRUE(std::isfinite(difference.max_absolute));
  }
}

// One element of one parameter in one group, by hand.
TEST_F(Merging, FindsOneElement) {
  const auto write = [&](const std::string& folder, std::vector<float> values) {
    WriterOptions options = testing::OptionsFor(dir_.path() + "/" + folder, {}, 0, 0);
    WriteResult outcome;
    {
      CheckpointWriter writer(options, [&](const WriteResult& result) { outcome = result; });
      const auto size = static_cast<int64_t>(values.size());
      const FlatTensor tensor{"t", "parameters", 0, "F32", size, {{"p", 0, 3, 0}, {"q", 0, 1, 3}}};
      writer.Start(testing::ManifestFor({}), {{tensor, values.data()}});
    }
    EXPECT_EQ(outcome.error, "");
    return Opened(outcome.path);
  };
  const auto a = write("a", {1, 2, 3, 4});
  const auto b = write("b", {1, 2.5, 3, 4});
  auto differences = *Compare(*a, *b);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].parameter, "p");
  EXPECT_EQ(differences[0].different, 1);
  EXPECT_EQ(differences[0].max_absolute, 0.5);
  EXPECT_EQ(differences[1].different, 0);
  const auto c = write("c", {1, NAN, -0.0, 4});
  differences = *Compare(*a, *c);
  EXPECT_EQ(differences[0].different, 2);
  EXPECT_TRUE(std::isinf(differences[0].max_absolute));
  EXPECT_EQ(Different(*c, *c), 0);
}

TEST_F(Merging, GroupsOfOneSideAreListed) {
  StateOptions state;
  state.moments = {"first_moment"};
  const auto one = Written(state, "a");
  state.mesh = {2, 1, 1};
  const auto two = Written(state, "b");
  const auto differences = Compare(*one, *two);
  ASSERT_THAT(differences, IsOk());
  EXPECT_EQ(differences->size(), 3u * 21);  // Parameters, and moments of two groups.
  for (const ParameterDifference& difference : *differences) {
    const bool only_b = difference.group == 1;
    EXPECT_EQ(difference.elements_a == 0, only_b);
    EXPECT_EQ(difference.different > 0, only_b);
  }
}

}  // namespace
}  // namespace fedshard::checkpoint
