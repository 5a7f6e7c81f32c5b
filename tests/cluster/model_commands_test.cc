// fedshard eval and fedshard generate with the real binaries: the loss is the engine's own, bit for
// bit, on any number of ranks; text is that of the plain forward pass, the same every time; what
// does not fit is refused by name; a killed rank or an interrupt leaves nothing behind.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/subprocess.h"
#include "common/testing/eventually.h"
#include "common/testing/temp_dir.h"
#include "tests/cluster/mini_cluster.h"
#include "tests/cluster/model_folder.h"
#include "tests/cluster/test_job.h"
#include "worker/collective/self_comm.h"
#include "worker/engine/engine.h"

namespace fedshard::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kT = 24;

class ModelCommands : public ::testing::Test {
 protected:
  ModelCommands() {
    WriteModelFolder(model_, weights_);
    std::mt19937_64 random(3);
    for (int i = 0; i < 400; ++i) tokens_.push_back(random() % 256);
    WriteTokenFile(folder_.path() + "/data", tokens_, 256);
    // The private folders of runs, where a leftover would be seen.
    std::filesystem::create_directory(folder_.path() + "/tmp");
    setenv("TMPDIR", (folder_.path() + "/tmp").c_str(), 1);
  }
  ~ModelCommands() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path() + "/tmp")) << "a folder is left";
    EXPECT_THAT(ProcessesNaming(folder_.path()), ::testing::IsEmpty());
    unsetenv("TMPDIR");
  }

  // `fedshard COMMAND MODEL ARGS... -o json`, parsed.
  json Run(const std::string& command, std::vector<std::string> args) {
    args.insert(args.begin(), {command, model_, "--threads", "1", "-o", "json"});
    const CommandResult result = Fedshard(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }
  json Eval(std::vector<std::string> args) {
    args.insert(args.begin(), {"--data", data_});
    return Run("eval", args);
  }
  void Refused(int code, std::vector<std::string> args, const std::vector<std::string>& parts) {
    const CommandResult result = Fedshard(args);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  }

  TempDir folder_;
  const std::string model_ = folder_.path() + "/model";
  const std::string data_ = folder_.path() + "/data.bin";
  const ModelWeights weights_ = RandomWeights(SmallModel(), 1);
  std::vector<uint16_t> tokens_;
};

std::unique_ptr<engine::Engine> EngineWith(const ModelWeights& weights, collective::Comm& self) {
  engine::EngineOptions options;
  options.model = weights.model;
  options.sequence_length = weights.model.max_position_embeddings;
  at::set_num_threads(1);
  auto engine = std::make_unique<engine::Engine>(options, self, self);
  engine->Load(engine::StateKind::kParameters,
               [&](const std::string& name, int64_t begin, int64_t count, float* out) {
                 std::copy_n(weights.values.at(name).begin() + begin, count, out);
               });
  return engine;
}

TEST_F(ModelCommands, EvalIsTheEnginesLossOnAnyNumberOfRanks) {
  collective::SelfComm self;
  const auto engine = EngineWith(weights_, self);
  const int64_t windows = (400 - 1) / kT;
  double loss = 0;
  for (int64_t window = 0; window < windows; ++window) {
    at::Tensor batch = at::empty({1, kT + 1}, at::kLong);
    for (int64_t i = 0; i <= kT; ++i) batch[0][i] = tokens_[window * kT + i];
    loss += engine->Evaluate(batch).loss_sum;
  }
  loss /= static_cast<double>(windows * kT);
  for (const char* ranks : {"1", "2", "3"}) {
    const json result = Eval({"--sequence-length", "24", "--ranks", ranks});
    EXPECT_EQ(result["loss"].get<double>(), loss) << ranks;
    EXPECT_EQ(result["tokens"], windows * kT);
    EXPECT_EQ(result["windows"], windows);
    EXPECT_DOUBLE_EQ(result["perplexity"].get<double>(), std::exp(loss));
    EXPECT_DOUBLE_EQ(result["bits_per_byte"].get<double>(), loss / std::log(2.0));
  }
  // Windows computed together, a last batch that is not full, and only some of them.
  const json together = Eval({"--sequence-length", "24", "--micro-batch", "3", "--ranks", "2"});
  EXPECT_NEAR(together["loss"].get<double>(), loss, 1e-6 * loss);
  EXPECT_EQ(Eval({"--sequence-length", "24", "--micro-batch", "3"})["loss"], together["loss"]);
  EXPECT_EQ(Eval({"--sequence-length", "24", "--sequences", "2"})["tokens"], 2 * kT);
}

TEST_F(ModelCommands, EvalForPeople) {
  const CommandResult result =
      Fedshard({"eval", model_, "--data", data_, "--threads", "1", "--sequences", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("2 of 64 tokens"), HasSubstr("nats per token"),
                                HasSubstr("perplexity"), HasSubstr("bits per byte")));
  EXPECT_EQ(result.err, "");
}

TEST_F(ModelCommands, GreedyTextIsThatOfThePlainForwardPass) {
  collective::SelfComm self;
  const auto engine = EngineWith(weights_, self);
  std::vector<int64_t> text = {'R', 'O', 'M'};
  std::vector<int64_t> expected;
  while (text.size() < 40) {
    text.push_back(engine->NextTokenLogits(at::tensor(text, at::kLong)).argmax().item<int64_t>());
    expected.push_back(text.back());
  }
  for (const char* ranks : {"1", "2"}) {
    const json result = Run(
        "generate", {"--prompt", "ROM", "--tokens", "37", "--temperature", "0", "--ranks", ranks});
    EXPECT_EQ(result["samples"][0]["tokens"].get<std::vector<int64_t>>(), expected) << ranks;
    EXPECT_EQ(result["samples"][0]["ended_by"], "length");
    EXPECT_EQ(result["prompt_tokens"], json({'R', 'O', 'M'}));
  }
  // As text: the prompt, then the bytes as they are.
  const CommandResult shown = Fedshard({"generate", model_, "--prompt", "ROM", "--tokens", "37",
                                        "--temperature", "0", "--threads", "1"});
  EXPECT_EQ(shown.out, std::string(text.begin(), text.end()) + "\n");
}

TEST_F(ModelCommands, DrawsDependOnTheSeedAlone) {
  const auto draw = [this](const std::string& seed, const std::string& samples,
                           const std::string& ranks) {
    return Run("generate",
               {"--prompt-tokens", "1,2,3", "--tokens", "30", "--temperature", "0.9", "--top-p",
                "0.9", "--seed", seed, "--samples", samples, "--ranks", ranks})["samples"];
  };
  const json two = draw("5", "2", "1");
  EXPECT_EQ(draw("5", "2", "2"), two);
  EXPECT_NE(two[0]["tokens"], two[1]["tokens"]);
  EXPECT_EQ(draw("6", "1", "1")[0]["tokens"], two[1]["tokens"]) << "sample i has seed + i";
  EXPECT_EQ(two[0]["tokens"].size(), 30u);
}

TEST_F(ModelCommands, StopTokensEndATextWithoutBeingPartOfIt) {
  const auto generate = [this](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"--prompt", "ROM", "--tokens", "20", "--temperature", "0"};
    args.insert(args.end(), more.begin(), more.end());
    return Run("generate", args)["samples"][0];
  };
  const auto all = generate({})["tokens"].get<std::vector<int64_t>>();
  const int64_t stop = all[7];
  const std::vector<int64_t> expected(all.begin(), std::find(all.begin(), all.end(), stop));
  const json stopped = generate({"--stop-tokens", std::to_string(stop)});
  EXPECT_EQ(stopped["tokens"].get<std::vector<int64_t>>(), expected);
  EXPECT_EQ(stopped["ended_by"], "stop token");
  // The model's own.
  WriteModelFolder(model_, weights_, "\"eos_token_id\": [255, " + std::to_string(stop) + "], ");
  EXPECT_EQ(generate({})["tokens"].get<std::vector<int64_t>>(), expected);
}

TEST_F(ModelCommands, TokenizerTurnsTextIntoTokensAndBack) {
  json vocabulary = {{"<s>", 0}, {"?", 1}};
  for (int i = 2; i < 300; ++i) vocabulary["w" + std::to_string(i)] = i;
  const json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", json::array()},
      {"pre_tokenizer", {{"type", "Whitespace"}}},
      {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "?"}}}};
  std::ofstream(model_ + "/tokenizer.json") << tokenizer;
  const std::vector<std::string> args = {"--tokens", "3", "--temperature", "0"};
  std::vector<std::string> with_text = args;
  with_text.insert(with_text.end(), {"--prompt", "w7 w9 other"});
  const json result = Run("generate", with_text);
  EXPECT_EQ(result["prompt_tokens"], json({7, 9, 1}));
  std::string text;
  for (const json& token : result["samples"][0]["tokens"]) {
    text += (text.empty() ? "w" : " w") + std::to_string(token.get<int>());
  }
  EXPECT_EQ(result["samples"][0]["text"], text);
  Refused(2, {"generate", model_, "--prompt", "w299"}, {"--prompt", "299", "256"});
  std::ofstream(model_ + "/tokenizer.json") << "{";
  Refused(2, {"generate", model_, "--prompt", "w7"}, {"tokenizer.json"});
}

TEST_F(ModelCommands, CheckpointsOfAnyMeshGiveTheSameLoss) {
  const std::string directory = folder_.path() + "/checkpoints";
  const std::string first = WriteCheckpoint(directory, weights_, 3, 10);
  const std::string second = WriteCheckpoint(directory, RandomWeights(SmallModel(), 2), 2, 20);
  const auto eval = [&](const std::string& path, const char* ranks) {
    const CommandResult result =
        Fedshard({"eval", path, "--data", data_, "--threads", "1", "--ranks", ranks, "-o", "json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    json value = json::parse(result.out, nullptr, false);
    value["warnings"] = result.err;
    return value;
  };
  const double loss = Eval({})["loss"];
  EXPECT_EQ(eval(first, "2")["loss"], loss);
  EXPECT_EQ(eval(first, "1")["step"], 10);
  // Of the folder the newest, unless it is damaged.
  const json newest = eval(directory, "1");
  EXPECT_EQ(newest["step"], 20);
  EXPECT_NE(newest["loss"], loss);
  EXPECT_EQ(newest["warnings"], "");
  std::filesystem::remove(second + "/shard-1.safetensors");
  const json older = eval(directory, "1");
  EXPECT_EQ(older["step"], 10);
  EXPECT_EQ(older["loss"], loss);
  EXPECT_THAT(older["warnings"].get<std::string>(), HasSubstr("shard-1.safetensors"));
  Refused(1, {"eval", second, "--data", data_}, {"shard-1.safetensors"});
  // What no header shows: a rank finds it.
  std::fstream file(first + "/shard-0.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8192);
  file.put('Z');
  file.close();
  Refused(1, {"eval", first, "--data", data_, "--ranks", "2"}, {"rank ", "shard-0.safetensors"});
}

TEST_F(ModelCommands, WhatDoesNotFitIsRefusedByName) {
  Refused(3, {"eval", folder_.path() + "/none", "--data", data_}, {"/none"});
  Refused(2, {"eval", folder_.path(), "--data", data_}, {"manifest.json", "config.json"});
  Refused(2, {"eval", model_}, {"--data"});
  Refused(2, {"eval", model_, "--data", data_, "--sequence-length", "65"},
          {"--sequence-length", "65", "max_position_embeddings", "64"});
  Refused(2, {"generate", model_, "--prompt", "abc", "--tokens", "62"}, {"--tokens", "62", "61"});
  Refused(2, {"generate", model_, "--prompt", std::string(64, 'a')}, {"prompt", "64"});
  Refused(2, {"generate", model_, "--prompt-tokens", "5,256"}, {"--prompt-tokens", "256"});
  Refused(2, {"generate", model_}, {"--prompt"});

  WriteTokenFile(folder_.path() + "/large", std::vector<uint16_t>(400, 1), 300);
  Refused(2, {"eval", model_, "--data", folder_.path() + "/large.bin"},
          {"large.bin", "300", "256"});
  WriteTokenFile(folder_.path() + "/short", std::vector<uint16_t>(20, 1), 256);
  Refused(2, {"eval", model_, "--data", folder_.path() + "/short.bin"}, {"short.bin", "20", "65"});

  ModelConfig words = SmallModel();
  words.vocab_size = 300;
  WriteModelFolder(model_, RandomWeights(words, 1));
  Refused(2, {"generate", model_, "--prompt", "a"}, {"--prompt", "300", "--tokenizer"});
  std::filesystem::resize_file(model_ + "/model.safetensors", 5000);
  Refused(1, {"eval", model_, "--data", data_}, {"model.safetensors"});
}

TEST_F(ModelCommands, ALossThatIsNotFiniteIsNoResult) {
  ModelWeights bad = weights_;
  bad.values.at("model.embed_tokens.weight")[tokens_[kT] * 32] = INFINITY;
  WriteModelFolder(model_, bad);
  Refused(1,
          {"eval", model_, "--data", data_, "--sequence-length", "24", "--threads", "1", "--ranks",
           "2"},
          {"window", "not finite"});
}

// An evaluation that takes long, its private folder seen and all its ranks started.
class RunningEval : public ModelCommands {
 protected:
  void Start() {
    WriteTokenFile(folder_.path() + "/long", std::vector<uint16_t>(2'000'000, 7), 256);
    Subprocess::Options options;
    options.argv = {Binary("fedshard"),
                    "eval",
                    model_,
                    "--data",
                    folder_.path() + "/long.bin",
                    "--sequence-length",
                    "4",
                    "--ranks",
                    "2",
                    "--threads",
                    "1"};
    options.out = Subprocess::Output::kDiscard;
    options.err = Subprocess::Output::kFile;
    options.err_file = folder_.path() + "/err";
    options.die_with_parent = true;
    auto started = Subprocess::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    process_ = *std::move(started);
    ASSERT_TRUE(Eventually([&] { return Ranks().size() == 2; }));
  }
  std::vector<pid_t> Ranks() { return ProcessesNaming(folder_.path() + "/tmp"); }
  // The exit code, and what it wrote to standard error.
  std::pair<int, std::string> End() {
    const auto exit = process_->WaitFor(60'000'000);
    std::ifstream file(folder_.path() + "/err");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return {exit ? exit->exit_code : -1, text};
  }

  std::unique_ptr<Subprocess> process_;
};

TEST_F(RunningEval, AKilledRankEndsTheOthers) {
  Start();
  kill(Ranks()[1], SIGKILL);
  const auto [exit_code, error] = End();
  EXPECT_EQ(exit_code, 1);
  EXPECT_THAT(error, HasSubstr("killed by signal 9"));
}

TEST_F(RunningEval, AnInterruptEndsAll) {
  Start();
  kill(process_->pid(), SIGINT);
  EXPECT_EQ(End().first, 130);
}

}  // namespace
}  // namespace fedshard::testing
