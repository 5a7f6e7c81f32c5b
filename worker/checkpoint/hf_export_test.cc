// An exported folder holds the same values in files of the promised sizes, says its dtype, and
// appears whole or not at all; nothing that exists is overwritten. That transformers loads it is
// for the parity tests.
#include "worker/checkpoint/hf_export.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/testing/hf_folder.h"

namespace fedshard::checkpoint {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class TensorSource : public ParameterSource {
 public:
  explicit TensorSource(testing::NamedTensors tensors) : tensors_(std::move(tensors)) {}

  absl::Status Read(const std::string& parameter, int64_t begin, int64_t count,
                    float* out) const override {
    const auto found = tensors_.find(parameter);
    if (found == tensors_.end()) return absl::DataLossError("no " + parameter);
    std::copy_n(found->second.values.begin() + begin, count, out);
    return absl::OkStatus();
  }

 private:
  const testing::NamedTensors tensors_;
};

class HfExport : public ::testing::Test {
 protected:
  HfExport() { options_.directory = folder_.path() + "/out"; }

  absl::StatusOr<ExportSummary> Export() const {
    return ExportHuggingFace(TensorSource(tensors_), model_, R"({"vocab_size": 24})", options_);
  }
  void ExpectSameValues(const ModelConfig& model) const {
    const auto weights = HfWeights::Open(options_.directory, model);
    ASSERT_THAT(weights, testing::IsOk());
    for (const auto& [name, tensor] : testing::TensorsOf(model)) {
      std::vector<float> values(tensor.values.size());
      ASSERT_THAT((*weights)->Read(name, 0, static_cast<int64_t>(values.size()), values.data()),
                  testing::IsOk());
      EXPECT_EQ(values, tensor.values) << name;
    }
  }
  json Json(const std::string& name) const {
    std::ifstream file(options_.directory + "/" + name);
    return json::parse(file);
  }
  std::vector<std::string> NamesIn(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  void ExpectNothingLeft() const { EXPECT_THAT(NamesIn(folder_.path()), IsEmpty()); }

  testing::TempDir folder_;
  ModelConfig model_ = testing::TinyModel();
  testing::NamedTensors tensors_ = testing::TensorsOf(model_);
  ExportOptions options_;
};

TEST_F(HfExport, WritesOneFileOfEachDtype) {
  const std::vector<std::pair<DType, std::string>> dtypes = {
      {DType::kF32, "float32"}, {DType::kF16, "float16"}, {DType::kBF16, "bfloat16"}};
  for (const auto& [dtype, name] : dtypes) {
    options_.directory = folder_.path() + "/" + name;
    options_.dtype = dtype;
    const auto summary = Export();
    ASSERT_THAT(summary, testing::IsOk());
    EXPECT_THAT(summary->files, ElementsAre("model.safetensors", "config.json"));
    int64_t parameters = 0;
    for (const auto& [tensor, values] : tensors_) {
      parameters += static_cast<int64_t>(values.values.size());
    }
    EXPECT_EQ(summary->parameters, parameters);
    EXPECT_EQ(summary->bytes,
              static_cast<int64_t>(fs::file_size(options_.directory + "/model.safetensors") +
                                   fs::file_size(options_.directory + "/config.json")));
    EXPECT_EQ(Json("config.json")["torch_dtype"], name);
    EXPECT_EQ(Json("config.json")["vocab_size"], 24);
    ExpectSameValues(model_);
    const auto file = SafetensorsReader::Open(options_.directory + "/model.safetensors");
    EXPECT_EQ((*file)->tensors().at("lm_head.weight").dtype, dtype);
    EXPECT_EQ((*file)->metadata().at("format"), "pt");
  }
}

TEST_F(HfExport, SplitsAboveTheLimit) {
  options_.max_file_bytes = 1500;  // The embedding alone has 768, a block 3072.
  const auto summary = Export();
  ASSERT_THAT(summary, testing::IsOk());
  EXPECT_THAT(summary->files, Contains("model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(options_.directory + "/model.safetensors"));
  const json index = Json("model.safetensors.index.json");
  EXPECT_EQ(index["weight_map"].size(), tensors_.size());
  EXPECT_EQ(index["metadata"]["total_size"], summary->parameters * 4);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) names.insert(file);
  EXPECT_GT(names.size(), 4u);
  for (const std::string& name : names) {
    const auto file = SafetensorsReader::Open(options_.directory + "/" + name);
    ASSERT_THAT(file, testing::IsOk());
    int64_t bytes = 0;
    for (const auto& [tensor, stored] : (*file)->tensors()) bytes += stored.bytes;
    EXPECT_LE(bytes, options_.max_file_bytes) << name;
  }
  ExpectSameValues(model_);
}

TEST_F(HfExport, GivesATensorAboveTheLimitItsOwnFile) {
  options_.max_file_bytes = 1;
  const auto summary = Export();
  ASSERT_THAT(summary, testing::IsOk());
  EXPECT_EQ(summary->files.size(), tensors_.size() + 2);
  ExpectSameValues(model_);
}

TEST_F(HfExport, WritesATiedHeadOnce) {
  model_.tie_word_embeddings = true;
  ASSERT_THAT(Export(), testing::IsOk());
  const auto file = SafetensorsReader::Open(options_.directory + "/model.safetensors");
  EXPECT_EQ((*file)->tensors().count("lm_head.weight"), 0u);
}

TEST_F(HfExport, SaysWhatTheModelIs) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({})", "llama"},
      {R"({"architectures": ["MistralForCausalLM"]})", "mistral"},
      {R"({"architectures": null, "model_type": "mistral", "dtype": "bfloat16"})", "mistral"},
  };
  for (const auto& [config, type] : cases) {
    options_.directory = folder_.path() + "/" + std::to_string(std::hash<std::string>()(config));
    ASSERT_THAT(ExportHuggingFace(TensorSource(tensors_), model_, config, options_),
                testing::IsOk());
    const json written = Json("config.json");
    EXPECT_EQ(written["model_type"], type);
    EXPECT_EQ(written["architectures"][0],
              type == "llama" ? "LlamaForCausalLM" : "MistralForCausalLM");
    EXPECT_EQ(written[written.contains("dtype") ? "dtype" : "torch_dtype"], "float32");
  }
}

TEST_F(HfExport, CopiesTheTokenizer) {
  testing::TempDir tokenizer;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "generation_config.json",
                           "model.safetensors", "README.md"}) {
    std::ofstream(tokenizer.path() + "/" + name) << name;
  }
  options_.tokenizer_directory = tokenizer.path();
  const auto summary = Export();
  ASSERT_THAT(summary, testing::IsOk());
  EXPECT_THAT(summary->files, ElementsAre("model.safetensors", "config.json", "tokenizer.json",
                                          "tokenizer.model", "generation_config.json"));
  std::ifstream copy(options_.directory + "/tokenizer.model");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(copy), {}), "tokenizer.model");
  ExpectSameValues(model_);
}

TEST_F(HfExport, FillsAnEmptyFolderAndMakesParents) {
  fs::create_directory(options_.directory);
  ASSERT_THAT(Export(), testing::IsOk());
  ExpectSameValues(model_);
  options_.directory = folder_.path() + "/a/b/c/";
  ASSERT_THAT(Export(), testing::IsOk());
  ExpectSameValues(model_);
  EXPECT_THAT(NamesIn(folder_.path() + "/a/b"), ElementsAre("c"));
}

TEST_F(HfExport, OverwritesNothing) {
  fs::create_directory(options_.directory);
  std::ofstream(options_.directory + "/notes.txt") << "mine";
  EXPECT_THAT(Export(),
              testing::StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(options_.directory)));
  EXPECT_THAT(NamesIn(folder_.path()), ElementsAre("out"));
  EXPECT_THAT(NamesIn(options_.directory), ElementsAre("notes.txt"));
  options_.directory += "/notes.txt";
  EXPECT_THAT(Export(), testing::StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST_F(HfExport, LeavesNothingBehindWhenItFails) {
  tensors_.erase("model.norm.weight");
  EXPECT_THAT(Export(), testing::StatusIs(absl::StatusCode::kDataLoss));
  ExpectNothingLeft();
  tensors_ = testing::TensorsOf(model_);
  int chunks = 0;
  options_.interrupted = [&] { return ++chunks > 5; };
  EXPECT_THAT(Export(), testing::StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(chunks, 6);
  ExpectNothingLeft();
}

TEST_F(HfExport, RefusesOptionsThatMakeNoSense) {
  options_.max_file_bytes = 0;
  EXPECT_THAT(Export(), testing::StatusIs(absl::StatusCode::kInvalidArgument));
  options_.max_file_bytes = 1 << 20;
  testing::TempDir empty;
  options_.tokenizer_directory = empty.path();
  EXPECT_THAT(Export(), testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr(empty.path() + ": has no tokenizer")));
  options_.tokenizer_directory = "";
  EXPECT_THAT(ExportHuggingFace(TensorSource(tensors_), model_, "[", options_),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("config.json")));
  options_.directory = "";
  EXPECT_THAT(Export(), testing::StatusIs(absl::StatusCode::kInvalidArgument));
  ExpectNothingLeft();
}

}  // namespace
}  // namespace fedshard::checkpoint
