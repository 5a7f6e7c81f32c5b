// Job files: the documented format becomes the documented specification, and every mistake is
// reported at its line and column.
#include "cli/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/spec/validate.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"

namespace fedshard::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr char kGood[] = R"(name: shakespeare
model: {config: m.json, init: random, seed: 1}
data: {train: t.bin, validation: /abs/v.bin, sequence_length: 128, seed: 7}
mesh: {mode: fl+hsdp, federation_groups: 2, replicas: 2, shards: 2}
training:
  steps: 200
  micro_batch: 2
  accumulation: 1
  optimizer: {type: adamw, learning_rate: 2e-3, betas: [0.8, 0.95], eps: 1e-8, weight_decay: 0.1, clip: 1.0}
  schedule: {type: cosine, warmup_tokens: 5%, final_ratio: 0.1}
federation: {every_steps: 8, weighting: equal, chunk: 2MiB}
evaluation: {every_rounds: 5, sequences: 64, sample: {prompt: "Hi", tokens: 3}}
resources: {device: cpu, threads_per_rank: 1, collective_timeout: 90s}
)";

class JobFile : public ::testing::Test {
 protected:
  JobFile() {
    std::ofstream(dir_.path() + "/m.json")
        << R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64,
              "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
              "max_position_embeddings": 128})";
  }
  absl::StatusOr<v1::JobSpec> Parse(const std::string& text) {
    return ParseJobFile(text, dir_.path() + "/job.yaml");
  }
  // kGood with one line (1, 2, …) replaced.
  std::string With(int line, const std::string& replacement) {
    std::istringstream in(kGood);
    std::string text, row;
    for (int n = 1; std::getline(in, row); ++n) text += (n == line ? replacement : row) + "\n";
    return text;
  }
  void Refused(const std::string& text, const std::string& place, const std::string& message) {
    EXPECT_THAT(Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("/job.yaml:" + place + ": "), HasSubstr(message))));
  }
  testing::TempDir dir_;
};

TEST_F(JobFile, TheDocumentedExample) {
  const auto spec = Parse(kGood);
  ASSERT_THAT(spec, testing::IsOk());
  EXPECT_EQ(spec->id(), "shakespeare");
  EXPECT_EQ(spec->data().train(), dir_.path() + "/t.bin");
  EXPECT_EQ(spec->data().validation(), "/abs/v.bin");
  EXPECT_EQ(spec->data().order(), v1::SAMPLE_ORDER_SHUFFLED);
  EXPECT_EQ(spec->mesh().mode(), v1::MESH_MODE_FL_HSDP);
  EXPECT_EQ(spec->training().steps(), 200);
  EXPECT_EQ(spec->training().optimizer().beta1(), 0.8);
  EXPECT_EQ(spec->training().schedule().warmup_tokens(), 20480);  // 5 % of 200 * 2048.
  EXPECT_EQ(spec->federation().weighting(), v1::WEIGHTING_EQUAL);
  EXPECT_EQ(spec->federation().chunk_bytes(), 2 << 20);
  EXPECT_EQ(spec->evaluation().sample().prompt_tokens_size(), 2);
  EXPECT_EQ(spec->resources().collective_timeout_seconds(), 90);
}

TEST_F(JobFile, DefaultsAndTokensInsteadOfSteps) {
  const auto spec = Parse(
      "name: a\nmodel: {config: m.json}\ndata: {train: t.bin, sequence_length: 100}\n"
      "mesh: {mode: fsdp, shards: 4}\ntraining: {tokens: 10K}\n");
  ASSERT_THAT(spec, testing::IsOk());
  EXPECT_EQ(spec->training().steps(), 25);  // 400 tokens a step.
  EXPECT_EQ(spec->federation().every_steps(), 8);
  EXPECT_EQ(spec->training().optimizer().type(), v1::OPTIMIZER_TYPE_ADAMW);
  EXPECT_EQ(spec->evaluation().sequences(), 0);
}

TEST_F(JobFile, MistakesAreReportedAtTheirPlace) {
  Refused(With(2, "modle: {config: m.json}"), "2:1", "did you mean model?");
  Refused(With(6, "  steps: many"), "6:10", "training.steps");
  Refused(With(6, "  steps: 0"), "6:10", "must be 1 to");
  Refused(With(6, "  stepz: 200"), "6:3", "did you mean steps?");
  Refused(With(7, "  micro_batch: [2]"), "7:16", "single value");
  Refused(With(7, "  micro_batch: 99999999999"), "7:16", "out of range");
  Refused(With(7, "  steps: 3"), "7:3", "given twice");
  Refused(With(9, "  optimizer: {type: adam}"), "9:21", "did you mean adamw?");
  Refused(With(9, "  optimizer: {learning_rate: .nan}"), "9:30", "not nan");
  Refused(With(9, "  optimizer: {betas: [0.9]}"), "9:22", "list of 2 numbers");
  Refused(With(9, "  optimizer: {betas: [0.9, 1.5]}"), "9:22", "below 1");
  Refused(With(10, "  schedule: {type: cosine, warmup_tokens: soon}"), "10:43", "2M");
  Refused(With(11, "federation: {every_steps: 0}"), "11:27", "federation.every_steps");
  Refused(With(4, "mesh: {mode: fsdp, replicas: 2}"), "4:30", "must be 1 in mode fsdp");
  Refused(With(4, "mesh: {mode: fl+fsdp, shards: 2}"), "4:7", "at least 2");
  Refused(With(4, "mesh: {shards: 2}"), "4:7", "mesh.mode is missing");
  Refused(With(1, "name: Not_OK"), "1:7", "lower-case");
  Refused(With(2, "model: {config: none.json}"), "2:17", "none.json: cannot be read");
  Refused(With(3, "data: [1]"), "3:7", "must be a mapping");
  Refused(With(3, "data: {train: t.bin, sequence_length: 129}"), "3:39", "max_position_embeddings");
  Refused(With(13, "resources: {collective_timeout: 5}"), "13:33", "not a duration");
  Refused(With(13, "checkpoint: {directory: ''}"), "13:25", "checkpoint.directory: is empty");
  Refused(With(3, "data: {train: ''}"), "3:15", "data.train: is empty");
  Refused(With(2, "model: {init: ''}"), "2:15", "model.init: is empty");
  Refused("name: [", "1:1", "end of sequence");
}

TEST_F(JobFile, OneDocumentAndABoundedReport) {
  Refused(std::string(kGood) + "---\nname: other\n", "15:1", "one document");
  EXPECT_THAT(Parse(""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name is missing")));
  std::string many = kGood;
  for (int i = 0; i < 100; ++i) many += "zz" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(Parse(many),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("and 80 more errors")));
}

TEST_F(JobFile, AllMistakesAtOnce) {
  const auto spec = Parse(With(1, "nmae: x"));
  EXPECT_THAT(
      spec, StatusIs(absl::StatusCode::kInvalidArgument,
                     AllOf(HasSubstr("name is missing"), HasSubstr(":1:1: unknown key \"nmae\""))));
}

TEST_F(JobFile, DeepAndHugeFilesCostNothing) {
  EXPECT_THAT(Parse(std::string(100'000, '[')), StatusIs(absl::StatusCode::kInvalidArgument));
  std::ofstream(dir_.path() + "/big.yaml") << std::string(10'000'000, 'x');
  EXPECT_THAT(ReadJobFile(dir_.path() + "/big.yaml"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("10000000 bytes")));
  EXPECT_THAT(ReadJobFile(dir_.path() + "/none.yaml"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.yaml")));
}

TEST_F(JobFile, TheExamplesAreValid) {
  for (const char* name : {"fsdp", "hsdp", "fl-fsdp", "fl-hsdp"}) {
    const char* source = getenv("FEDSHARD_SOURCE");
    ASSERT_NE(source, nullptr);
    const auto spec = ReadJobFile(std::string(source) + "/examples/shakespeare/" + name + ".yaml");
    ASSERT_THAT(spec, testing::IsOk()) << name;
    EXPECT_EQ(WorldSize(*spec), 8) << name;
  }
}

}  // namespace
}  // namespace fedshard::cli
