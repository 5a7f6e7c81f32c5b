// Model folders in one file or several, of every supported dtype, are read by logical ranges; a
// folder that is not exactly the model of its configuration is refused with the tensor's name.
#include "worker/checkpoint/hf_weights.h"

#include <gtest/gtest.h>

#include <fstream>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/testing/hf_folder.h"

namespace fedshard::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class HfWeightsTest : public ::testing::Test {
 protected:
  void ExpectRefused(const ModelConfig& model, absl::StatusCode code,
                     const std::string& what) const {
    EXPECT_THAT(HfWeights::Open(folder_.path(), model),
                testing::StatusIs(code, AllOf(HasSubstr(folder_.path()), HasSubstr(what))));
  }

  testing::TempDir folder_;
  const ModelConfig model_ = testing::TinyModel();
  const std::string file_ = folder_.path() + "/model.safetensors";
  const std::string index_ = folder_.path() + "/model.safetensors.index.json";
};

// All values, read in ranges that end in the middle of rows.
void ExpectValues(const ParameterSource& source, const testing::NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const auto size = static_cast<int64_t>(tensor.values.size());
    std::vector<float> back(tensor.values.size());
    for (int64_t begin = 0; begin < size; begin += 7) {
      const int64_t count = std::min<int64_t>(7, size - begin);
      ASSERT_THAT(source.Read(name, begin, count, back.data() + begin), testing::IsOk());
    }
    EXPECT_EQ(back, tensor.values) << name;
  }
}

TEST_F(HfWeightsTest, ReadsOneFileOfEachDtype) {
  const auto tensors = testing::TensorsOf(model_);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    testing::WriteTensors(file_, tensors, dtype);
    const auto weights = HfWeights::Open(folder_.path(), model_);
    ASSERT_THAT(weights, testing::IsOk());
    ExpectValues(**weights, tensors);
  }
}

TEST_F(HfWeightsTest, ReadsSeveralFiles) {
  const auto tensors = testing::TensorsOf(model_);
  testing::WriteSharded(folder_.path(), tensors, 3, DType::kBF16);
  const auto weights = HfWeights::Open(folder_.path(), model_);
  ASSERT_THAT(weights, testing::IsOk());
  ExpectValues(**weights, tensors);
}

TEST_F(HfWeightsTest, IgnoresBuffersAndATiedHead) {
  ModelConfig tied = model_;
  tied.tie_word_embeddings = true;
  auto tensors = testing::TensorsOf(tied);
  const auto parameters = tensors;
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{2}, {1, 2}};
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  testing::WriteTensors(file_, tensors, DType::kF32);
  const auto weights = HfWeights::Open(folder_.path(), tied);
  ASSERT_THAT(weights, testing::IsOk());
  ExpectValues(**weights, parameters);
}

TEST_F(HfWeightsTest, RefusesAnotherModelByTensor) {
  const auto tensors = testing::TensorsOf(model_);
  for (const auto& [name, tensor] : tensors) {
    auto without = tensors;
    without.erase(name);
    testing::WriteTensors(file_, without, DType::kF32);
    ExpectRefused(model_, absl::StatusCode::kInvalidArgument, "has no tensor \"" + name + "\"");
  }
  auto more = tensors;
  more["model.layers.1.self_attn.q_proj.bias"] = {{8}, std::vector<float>(8)};
  testing::WriteTensors(file_, more, DType::kF32);
  ExpectRefused(model_, absl::StatusCode::kInvalidArgument, "model.layers.1.self_attn.q_proj.bias");
  testing::WriteTensors(file_, tensors, DType::kF32);
  ModelConfig wider = model_;
  wider.intermediate_size += 1;
  ExpectRefused(wider, absl::StatusCode::kInvalidArgument,
                "\"model.layers.0.mlp.gate_proj.weight\" is [20, 8], but config.json makes it "
                "[21, 8]");
  ModelConfig shallower = model_;
  shallower.num_hidden_layers -= 1;
  ExpectRefused(shallower, absl::StatusCode::kInvalidArgument, "is no part of the model");
  ModelConfig none = model_;
  none.hidden_size = 0;
  ExpectRefused(none, absl::StatusCode::kInvalidArgument, "hidden_size");
}

TEST_F(HfWeightsTest, RefusesFoldersWithoutWeights) {
  ExpectRefused(model_, absl::StatusCode::kNotFound, "neither model.safetensors nor");
  testing::WriteSharded(folder_.path(), testing::TensorsOf(model_), 2, DType::kF32);
  std::filesystem::remove(folder_.path() + "/model-00002-of-00002.safetensors");
  ExpectRefused(model_, absl::StatusCode::kNotFound, "model-00002-of-00002.safetensors");
  std::ofstream(file_) << "garbage of more than eight bytes";
  ExpectRefused(model_, absl::StatusCode::kDataLoss, "model.safetensors");
}

TEST_F(HfWeightsTest, RefusesGarbledIndexes) {
  const auto tensors = testing::TensorsOf(model_);
  testing::WriteTensors(folder_.path() + "/a.safetensors", tensors, DType::kF32);
  testing::WriteTensors(folder_.path() + "/b.safetensors", {{"x", {{1}, {1}}}}, DType::kF32);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "weight_map"},
      {"[]", "weight_map"},
      {R"({"weight_map": 1})", "weight_map"},
      {R"({"weight_map": {"x": 1}})", "\"x\""},
      {R"({"weight_map": {"x": "../a.safetensors"}})", "\"x\""},
      {R"({"weight_map": {"x": ".."}})", "\"x\""},
      {R"({"weight_map": {"x": "a.safetensors"}})", "\"x\" is not in a.safetensors"},
      {R"({"weight_map": {"lm_head.weight": "a.safetensors", "x": "a.safetensors",)"
       R"( "y": "b.safetensors"}})",
       "\"x\" is not in a.safetensors"},
  };
  for (const auto& [text, what] : cases) {
    std::ofstream(index_) << text;
    ExpectRefused(model_, absl::StatusCode::kDataLoss, what);
  }
  testing::WriteTensors(folder_.path() + "/b.safetensors",
                        {{"lm_head.weight", tensors.at("lm_head.weight")}}, DType::kF32);
  std::ofstream(index_) << R"({"weight_map": {"lm_head.weight": "a.safetensors",)"
                        << R"( "model.norm.weight": "b.safetensors"}})";
  ExpectRefused(model_, absl::StatusCode::kInvalidArgument, "\"lm_head.weight\" is in");
}

TEST_F(HfWeightsTest, NamesWhatIsReadBeyondIt) {
  testing::WriteTensors(file_, testing::TensorsOf(model_), DType::kF32);
  const auto weights = HfWeights::Open(folder_.path(), model_);
  ASSERT_THAT(weights, testing::IsOk());
  float value;
  EXPECT_THAT((*weights)->Read("none", 0, 1, &value),
              testing::StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"none\"")));
  EXPECT_THAT((*weights)->Read("model.norm.weight", 8, 1, &value),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model.norm")));
}

}  // namespace
}  // namespace fedshard::checkpoint
