// Published Llama configurations are read as they are; what cannot be trained faithfully is refused
// by its field.
#include "common/spec/model_config_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/testing/status_matchers.h"

namespace fedshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

json Llama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})");
}

TEST(ModelConfigJson, ReadsLlama3) {
  const auto model = ParseModelConfig(Llama().dump());
  ASSERT_THAT(model, testing::IsOk());
  EXPECT_EQ(model->vocab_size, 128256);
  EXPECT_EQ(model->head_dim, 128);
  EXPECT_EQ(model->num_key_value_heads, 8);
  EXPECT_EQ(model->rope_theta, 500000.0);
  EXPECT_EQ(model->rms_norm_eps, 1e-5);
  EXPECT_FALSE(model->tie_word_embeddings);
}

// Llama 2 7B, Llama 3.2 1B and Mistral 7B v0.3, field by field.
TEST(ModelConfigJson, ReadsOtherPublishedModels) {
  const auto llama2 = ParseModelConfig(R"({"_name_or_path": "meta-llama/Llama-2-7b-hf",
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
    "use_cache": true, "vocab_size": 32000})");
  ASSERT_THAT(llama2, testing::IsOk());
  EXPECT_EQ(llama2->rope_theta, 10000);
  EXPECT_EQ(llama2->num_key_value_heads, 32);

  const auto llama32 = ParseModelConfig(R"({"architectures": ["LlamaForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
    "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
    "vocab_size": 128256})");
  ASSERT_THAT(llama32, testing::IsOk());
  EXPECT_TRUE(llama32->tie_word_embeddings);
  EXPECT_EQ(llama32->rope_scaling.factor, 32);

  const auto mistral = ParseModelConfig(R"({"architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0", "use_cache": true,
    "vocab_size": 32768})");
  ASSERT_THAT(mistral, testing::IsOk());
  EXPECT_EQ(mistral->rope_theta, 1e6);
}

TEST(ModelConfigJson, FillsInDefaults) {
  json config = Llama();
  config.erase("num_key_value_heads");
  config["head_dim"] = 64;
  config["tie_word_embeddings"] = true;
  const auto model = ParseModelConfig(config.dump());
  ASSERT_THAT(model, testing::IsOk());
  EXPECT_EQ(model->num_key_value_heads, 32);
  EXPECT_EQ(model->head_dim, 64);
  EXPECT_TRUE(model->tie_word_embeddings);
}

TEST(ModelConfigJson, RefusesByField) {
  const std::vector<std::pair<std::string, json>> cases = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"hidden_size", 0},
      {"hidden_size", -1},
      {"hidden_size", 1e30},
      {"hidden_size", "big"},
      {"vocab_size", 18446744073709551615u},
      {"num_key_value_heads", 5},
      {"num_attention_heads", 24},
      {"head_dim", 63},
      {"num_hidden_layers", 100000},
      {"rms_norm_eps", 0},
      {"rope_theta", "x"},
      {"rope_scaling", 8},
      {"rope_interleaved", true},
      {"model_type", "mistral"},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"hidden_act", "gelu"},
      {"sliding_window", 4096},
      {"quantization_config", {{"bits", 4}}},
      {"tie_word_embeddings", 1},
      {"qk_norm", true},
  };
  for (const auto& [field, value] : cases) {
    json config = Llama();
    config[field] = value;
    EXPECT_THAT(ParseModelConfig(config.dump()),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(field + ": ")))
        << value;
  }
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads"}) {
    json config = Llama();
    config.erase(field);
    EXPECT_THAT(ParseModelConfig(config.dump()),
                testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr(std::string(field) + ": is missing")));
  }
}

TEST(ModelConfigJson, ANullHeadDimIsAMissingOne) {
  json config = Llama();
  config["head_dim"] = nullptr;
  ASSERT_THAT(ParseModelConfig(config.dump()), testing::IsOk());
  config["num_attention_heads"] = 24;
  EXPECT_THAT(ParseModelConfig(config.dump()),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                StartsWith("num_attention_heads: 24 does not divide")));
}

TEST(ModelConfigJson, RefusesProductsBeyondAnyMachine) {
  json config = Llama();
  for (const char* field :
       {"hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"}) {
    config[field] = 1 << 24;  // 2^72 weights in one projection.
  }
  EXPECT_THAT(ParseModelConfig(config.dump()),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                StartsWith("num_attention_heads: with the other sizes")));
}

TEST(ModelConfigJson, ShowsNoNestedValueInItsErrors) {
  // A recursive printer would leave the stack here.
  constexpr int kDepth = 500'000;
  std::string text = Llama().dump();
  const std::string none = R"("tie_word_embeddings":false)";
  text.replace(text.find(none), none.size(),
               R"("quantization_config":)" + std::string(kDepth, '[') + std::string(kDepth, ']'));
  EXPECT_THAT(ParseModelConfig(text),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                StartsWith("quantization_config: is not supported with an array")));
}

TEST(ModelConfigJson, AMistralsDefaultsAreNotALlamas) {
  json config = Llama();
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = nullptr;
  EXPECT_THAT(ParseModelConfig(config.dump()), testing::IsOk());
  for (const char* field : {"sliding_window", "num_key_value_heads", "max_position_embeddings"}) {
    json without = config;
    without.erase(field);
    EXPECT_THAT(ParseModelConfig(without.dump()),
                testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                  StartsWith(std::string(field) + ": is missing, and a Mistral")));
  }
}

TEST(ModelConfigJson, RefusesWhatIsNoConfiguration) {
  for (const std::string text : {"", "[]", "{", "null", "{}"}) {
    EXPECT_THAT(ParseModelConfig(text), testing::StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
  EXPECT_THAT(ParseModelConfig(std::string(3 << 20, ' ')),
              testing::StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace fedshard
