// A checkpoint written by the ranks of one mesh is read by those of any other with every value in
// its place, and reading touches only the chunks that hold what is asked for.
#include <gtest/gtest.h>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/shard_description.h"
#include "worker/checkpoint/testing/fake_state.h"

namespace fedshard::checkpoint {
namespace {

using fedshard::testing::IsOk;
using fedshard::testing::StatusIs;
using fedshard::testing::TempDir;
using testing::CheckAs;
using ::testing::HasSubstr;
using testing::SmallModel;
using testing::StateOptions;
using testing::WriteAll;

struct Case {
  const char* name;
  Mesh from;
  Mesh to;
  bool tied = false;
  std::string moment_dtype = "F32";
};

class Reshard : public ::testing::TestWithParam<Case> {};

TEST_P(Reshard, EveryValueIsInItsPlace) {
  const TempDir dir;
  StateOptions state;
  state.model = SmallModel(GetParam().tied);
  state.mesh = GetParam().from;
  state.moment_dtype = GetParam().moment_dtype;
  const WriteResult result = WriteAll(dir.path(), state);
  ASSERT_EQ(result.error, "");
  const auto reader = CheckpointReader::Open(result.path);
  ASSERT_THAT(reader, IsOk());
  EXPECT_THAT((*reader)->Verify(), IsOk());
  EXPECT_THAT(CheckAs(**reader, state, GetParam().to), IsOk());
  EXPECT_THAT(CheckAs(**reader, state, GetParam().from), IsOk());
  const engine::ModelLayout layout(state.model, GetParam().to.shards);
  for (const char* kind : {"parameters", "first_moment", "second_moment"}) {
    EXPECT_THAT(CheckModel((*reader)->manifest(), layout, kind), IsOk());
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Reshard,
                         ::testing::Values(Case{"OneToEight", {1, 1, 1}, {1, 1, 8}},
                                           Case{"EightToOne", {1, 1, 8}, {1, 1, 1}},
                                           Case{"TwoByTwoToFourGroups", {2, 1, 2}, {4, 1, 1}},
                                           Case{"TwoByTwoToFourShards", {1, 2, 2}, {1, 1, 4}},
                                           Case{"TwoToThree", {1, 1, 2}, {1, 1, 3}},
                                           Case{"ThreeToEight", {1, 1, 3}, {1, 1, 8}},
                                           Case{"FsdpToFederatedHsdp", {1, 1, 4}, {2, 2, 2}},
                                           Case{"FederatedHsdpToFsdp", {2, 2, 2}, {1, 1, 5}},
                                           Case{"Tied", {1, 1, 8}, {3, 1, 2}, true},
                                           Case{
                                               "Bf16Moments", {2, 1, 3}, {2, 1, 4}, false, "BF16"}),
                         [](const auto& info) { return info.param.name; });

TEST(Reshard, ReadsOnlyWhatIsAskedFor) {
  const TempDir dir;
  StateOptions state;
  state.mesh = {1, 1, 4};
  const WriteResult result = WriteAll(dir.path(), state);
  ASSERT_EQ(result.error, "");
  const auto reader = CheckpointReader::Open(result.path);
  ASSERT_THAT(reader, IsOk());
  EXPECT_EQ((*reader)->bytes_read(), 0);
  const auto source = (*reader)->Source("second_moment", 0);
  ASSERT_THAT(source, IsOk());
  float value = 0;
  ASSERT_THAT((*source)->Read("model.norm.weight", 35, 1, &value), IsOk());
  EXPECT_EQ(value, testing::ValueOf("second_moment", 0, "model.norm.weight", 35, "F32"));
  // The header's chunks of one file and the chunk of the value, of hundreds of KiB in all.
  EXPECT_LE((*reader)->bytes_read(), 3 * 4096);
  EXPECT_GT(result.bytes, 100 * 4096);
  // The neighbour is in the same chunk, and is not read again.
  const int64_t before = (*reader)->bytes_read();
  ASSERT_THAT((*source)->Read("model.norm.weight", 34, 1, &value), IsOk());
  EXPECT_EQ((*reader)->bytes_read(), before);
}

// A rank of eight reads its eighth of the parameters, besides the headers and the chunks at the
// edges of its pieces.
TEST(Reshard, ARankReadsItsPart) {
  const TempDir dir;
  StateOptions state;
  state.moments = {};
  ASSERT_EQ(WriteAll(dir.path(), state).error, "");
  const engine::ModelLayout layout(state.model, 8);
  for (int shard = 0; shard < 8; ++shard) {
    const auto reader = CheckpointReader::Open(dir.path() + "/step-00000400");
    ASSERT_THAT(reader, IsOk());
    const auto source = (*reader)->Source("parameters", 0);
    ASSERT_THAT(source, IsOk());
    int64_t bytes = 0;
    int64_t pieces = 0;
    std::vector<float> values(100'000);
    for (const FlatTensor& tensor : DescribeShard(layout, shard, "parameters", 0, "F32")) {
      for (const Piece& piece : tensor.pieces) {
        ASSERT_THAT((*source)->Read(piece.parameter, piece.begin, piece.length, values.data()),
                    IsOk());
        bytes += piece.length * 4;
        ++pieces;
      }
    }
    EXPECT_LE((*reader)->bytes_read(), bytes + 4096 * (2 * pieces + 2));
  }
}

TEST(Reshard, KindsAreFree) {
  const TempDir dir;
  StateOptions state;
  state.mesh = {2, 1, 2};
  state.moments = {"outer_first_moment", "residual"};
  const WriteResult result = WriteAll(dir.path(), state);
  ASSERT_EQ(result.error, "");
  const auto reader = CheckpointReader::Open(result.path);
  ASSERT_THAT(reader, IsOk());
  EXPECT_TRUE((*reader)->Has("residual"));
  EXPECT_FALSE((*reader)->Has("first_moment"));
  EXPECT_THAT((*reader)->Kinds(),
              ::testing::ElementsAre("outer_first_moment", "parameters", "residual"));
  EXPECT_THAT((*reader)->GroupsOf("residual"), ::testing::ElementsAre(0, 1));
  EXPECT_THAT((*reader)->GroupsOf("parameters"), ::testing::ElementsAre(0));
  EXPECT_THAT(CheckAs(**reader, state, {2, 1, 1}), IsOk());
  EXPECT_THAT((*reader)->Source("first_moment", 0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("stores no first_moment")));
}

TEST(Reshard, AnotherModelIsNamed) {
  const TempDir dir;
  StateOptions state;
  state.mesh = {1, 1, 2};
  const WriteResult result = WriteAll(dir.path(), state);
  const auto reader = CheckpointReader::Open(result.path);
  ASSERT_THAT(reader, IsOk());
  const Manifest& manifest = (*reader)->manifest();
  const auto expect = [&](const ModelConfig& model, const std::string& message) {
    EXPECT_THAT(CheckModel(manifest, engine::ModelLayout(model, 3), "first_moment"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  ModelConfig model = state.model;
  model.num_hidden_layers = 3;
  expect(model, "first_moment of model.layers.2.input_layernorm.weight: is not in the checkpoint");
  model = state.model;
  model.num_hidden_layers = 1;
  expect(model, "model.layers.1.input_layernorm.weight: is not a parameter of the model");
  model = state.model;
  model.vocab_size = 302;
  expect(model, "lm_head.weight: has 10836 elements in the checkpoint, 10872 in the model");
  expect(SmallModel(true), "lm_head.weight: is not a parameter of the model");

  const auto source = (*reader)->Source("parameters", 0);
  std::vector<float> values(100);
  EXPECT_THAT((*source)->Read("model.layers.2.mlp.up_proj.weight", 0, 1, values.data()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("is not stored")));
  EXPECT_THAT((*source)->Read("model.norm.weight", 30, 7, values.data()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("element 36 is not stored")));
  EXPECT_THAT((*source)->Read("model.norm.weight", -1, 7, values.data()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace fedshard::checkpoint
