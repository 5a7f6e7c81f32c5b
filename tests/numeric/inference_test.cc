// The inference engine against the training engine, bit for bit; the key-value cache against the
// plain forward pass, at every position and for every way to cut a text into calls; greedy text is
// the same with and without it; shard groups give the bits of one rank.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/collective/fake_comm.h"
#include "worker/collective/self_comm.h"
#include "worker/collective/testing/ranks.h"
#include "worker/engine/engine.h"
#include "worker/engine/inference_engine.h"

namespace fedshard::numeric {
namespace {

using engine::InferenceEngine;
using engine::InferenceOptions;
using engine::KeyValueCache;

constexpr int64_t kT = 24;
constexpr int64_t kVocabulary = 67;

struct Shape {
  const char* name;
  int64_t kv_heads;
  bool tied;
};

ModelConfig Model(const Shape& shape) {
  ModelConfig model;
  model.vocab_size = kVocabulary;
  model.hidden_size = 64;
  model.intermediate_size = 104;
  model.num_hidden_layers = 3;
  model.num_attention_heads = 4;
  model.num_key_value_heads = shape.kv_heads;
  model.head_dim = 16;
  model.max_position_embeddings = 64;
  model.rms_norm_eps = 1e-5;
  model.initializer_range = 0.2;  // Large, so that attention looks at something.
  model.tie_word_embeddings = shape.tied;
  return model;
}

at::Tensor Tokens(int64_t seed, int64_t sequences, int64_t length) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed + 100);
  return at::randint(kVocabulary, {sequences, length}, generator, at::kLong);
}

// A training engine: the source of the weights, and the plain answers.
struct Trained {
  explicit Trained(const Shape& shape) : model(Model(shape)), engine(Options(model), self, self) {
    at::set_num_threads(1);  // Ranks are threads.
    engine.InitializeRandom(4);
    for (const std::string& name : engine.ParameterNames()) {
      parameters[name] = engine.GatherParameter(name).contiguous();
    }
  }
  static engine::EngineOptions Options(const ModelConfig& model) {
    engine::EngineOptions options;
    options.model = model;
    options.sequence_length = kT;
    options.micro_batch = 3;
    return options;
  }
  at::Tensor Logits(const at::Tensor& tokens) {
    return engine.NextTokenLogits(tokens.contiguous());
  }

  const ModelConfig model;
  collective::SelfComm self;
  engine::Engine engine;
  std::map<std::string, at::Tensor> parameters;
};

// An inference engine with the weights of `trained`, or this rank's part of them.
struct Inference {
  Inference(const Trained& trained, collective::Comm& shard)
      : engine(Options(trained.model), shard) {
    engine.Load([&](const std::string& name, int64_t begin, int64_t count, float* out) {
      std::copy_n(trained.parameters.at(name).const_data_ptr<float>() + begin, count, out);
    });
  }
  static InferenceOptions Options(const ModelConfig& model) {
    InferenceOptions options;
    options.model = model;
    options.max_length = kT;
    options.poison_buffers = true;
    return options;
  }

  InferenceEngine engine;
};

// Largest difference over the largest value.
double RelativeError(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

class InferenceTest : public ::testing::TestWithParam<Shape> {};

TEST_P(InferenceTest, EvaluatesLikeTheTrainingEngineBitForBit) {
  Trained trained(GetParam());
  collective::SelfComm self;
  Inference inference(trained, self);
  const at::Tensor batch = Tokens(1, 3, kT + 1);
  const engine::LossSum expected = trained.engine.Evaluate(batch);
  const engine::LossSum loss = inference.engine.Evaluate(batch);
  EXPECT_EQ(loss.loss_sum, expected.loss_sum);
  EXPECT_EQ(loss.tokens, expected.tokens);
  const at::Tensor context = batch[0].narrow(0, 0, 7);
  EXPECT_TRUE(
      at::equal(inference.engine.NextTokenLogits(context.contiguous()), trained.Logits(context)));
  EXPECT_EQ(inference.engine.parameters(), trained.engine.parameters());
}

TEST_P(InferenceTest, CacheGivesThePlainLogitsAtEveryPosition) {
  Trained trained(GetParam());
  collective::SelfComm self;
  Inference inference(trained, self);
  const at::Tensor batch = Tokens(2, 2, kT);  // Two different sequences at once.
  for (const int64_t prompt : {1, 5, 23, 24}) {
    KeyValueCache cache = inference.engine.MakeCache(2, kT);
    at::Tensor logits = inference.engine.Decode(batch.narrow(1, 0, prompt), cache);
    for (int64_t length = prompt;; ++length) {
      ASSERT_EQ(cache.length, length);
      ASSERT_EQ(logits.sizes(), at::IntArrayRef({2, kVocabulary}));
      for (int64_t row = 0; row < 2; ++row) {
        EXPECT_LT(RelativeError(logits[row], trained.Logits(batch[row].narrow(0, 0, length))), 1e-5)
            << "prompt " << prompt << ", length " << length << ", row " << row;
      }
      if (length == kT) break;
      logits = inference.engine.Decode(batch.narrow(1, length, 1), cache);
    }
  }
}

TEST_P(InferenceTest, SeveralTokensMayFollowOthersAtOnce) {
  Trained trained(GetParam());
  collective::SelfComm self;
  Inference inference(trained, self);
  const at::Tensor batch = Tokens(3, 2, kT);
  KeyValueCache cache = inference.engine.MakeCache(2, kT);
  for (const int64_t count : {3, 7, 1, 12}) {
    const at::Tensor logits = inference.engine.Decode(batch.narrow(1, cache.length, count), cache);
    for (int64_t row = 0; row < 2; ++row) {
      EXPECT_LT(RelativeError(logits[row], trained.Logits(batch[row].narrow(0, 0, cache.length))),
                1e-5)
          << cache.length;
    }
  }
}

// Continues `prompt` to kT tokens, each the likeliest; ties do not occur with these weights.
std::vector<int64_t> Greedy(const at::Tensor& prompt,
                            const std::function<at::Tensor(const std::vector<int64_t>&)>& logits) {
  std::vector<int64_t> text(prompt.const_data_ptr<int64_t>(),
                            prompt.const_data_ptr<int64_t>() + prompt.numel());
  while (static_cast<int64_t>(text.size()) < kT) {
    text.push_back(logits(text).argmax(-1).item<int64_t>());
  }
  return text;
}

TEST_P(InferenceTest, GreedyTextIsTheSameWithTheCache) {
  Trained trained(GetParam());
  collective::SelfComm self;
  Inference inference(trained, self);
  for (int64_t seed = 0; seed < 4; ++seed) {
    const at::Tensor prompt = Tokens(seed, 1, 4)[0].contiguous();
    const auto plain = Greedy(prompt, [&](const std::vector<int64_t>& text) {
      return trained.engine.NextTokenLogits(at::tensor(text, at::kLong));
    });
    KeyValueCache cache = inference.engine.MakeCache(1, kT);
    const auto cached = Greedy(prompt, [&](const std::vector<int64_t>& text) {
      const at::Tensor all = at::tensor(text, at::kLong).unsqueeze(0);
      return inference.engine.Decode(all.narrow(1, cache.length, all.size(1) - cache.length),
                                     cache)[0];
    });
    EXPECT_EQ(cached, plain);
  }
}

TEST_P(InferenceTest, ShardGroupsGiveTheBitsOfOneRank) {
  const Trained trained(GetParam());
  const at::Tensor batch = Tokens(5, 2, kT + 1);
  collective::SelfComm self;
  Inference single(trained, self);
  KeyValueCache cache = single.engine.MakeCache(2, kT);
  const at::Tensor prefilled = single.engine.Decode(batch.narrow(1, 0, 6), cache);
  const at::Tensor next = single.engine.Decode(batch.narrow(1, 6, 1), cache);
  for (const int shards : {2, 3}) {
    collective::FakeWorld world(shards);
    collective::RunRanks(shards, [&](int rank) {
      const auto shard = world.Connect(rank);
      Inference part(trained, *shard);
      KeyValueCache mine = part.engine.MakeCache(2, kT);
      EXPECT_TRUE(at::equal(part.engine.Decode(batch.narrow(1, 0, 6), mine), prefilled));
      EXPECT_TRUE(at::equal(part.engine.Decode(batch.narrow(1, 6, 1), mine), next));
      // Each rank evaluates windows of its own.
      const at::Tensor window = batch[rank % 2].unsqueeze(0);
      EXPECT_EQ(part.engine.Evaluate(window).loss_sum, single.engine.Evaluate(window).loss_sum);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, InferenceTest,
                         ::testing::Values(Shape{"gqa", 2, false}, Shape{"mha", 4, false},
                                           Shape{"mqa", 1, false}, Shape{"tied", 2, true}),
                         [](const auto& info) { return info.param.name; });

TEST(KeyValueCache, RefusesMoreThanItHasRoomFor) {
  const Trained trained({"gqa", 2, false});
  collective::SelfComm self;
  Inference inference(trained, self);
  EXPECT_THROW(inference.engine.MakeCache(1, kT + 1), c10::Error);
  KeyValueCache cache = inference.engine.MakeCache(1, 8);
  inference.engine.Decode(Tokens(1, 1, 6), cache);
  EXPECT_THROW(inference.engine.Decode(Tokens(1, 1, 3), cache), c10::Error);
  EXPECT_THROW(inference.engine.Decode(Tokens(1, 2, 1), cache), c10::Error);
  inference.engine.Decode(Tokens(1, 1, 2), cache);
  EXPECT_EQ(cache.length, 8);
}

}  // namespace
}  // namespace fedshard::numeric
