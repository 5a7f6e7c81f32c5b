// Rotary embeddings of published configurations, in the older and the newer way to write them, are
// read in full; what is unknown, missing or contradictory is refused by its name.
#include "common/spec/rope_json.h"

#include <gtest/gtest.h>

#include "common/spec/model_config_json.h"
#include "common/testing/status_matchers.h"

namespace fedshard {
namespace {

using nlohmann::json;
using ::testing::StartsWith;

// Of Llama 3.1.
json Llama3Scaling() {
  return json::parse(R"({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"})");
}

json Config() {
  return json::parse(R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 64,
                         "intermediate_size": 64, "num_hidden_layers": 1,
                         "num_attention_heads": 4, "rope_theta": 500000.0})");
}

TEST(RopeJson, ReadsLlama3) {
  json config = Config();
  config["rope_scaling"] = Llama3Scaling();
  const auto model = ParseModelConfig(config.dump());
  ASSERT_THAT(model, testing::IsOk());
  EXPECT_EQ(model->rope_theta, 500000.0);
  EXPECT_EQ(model->rope_scaling.type, RopeScaling::Type::kLlama3);
  EXPECT_EQ(model->rope_scaling.factor, 8);
  EXPECT_EQ(model->rope_scaling.low_freq_factor, 1);
  EXPECT_EQ(model->rope_scaling.high_freq_factor, 4);
  EXPECT_EQ(model->rope_scaling.original_max_position_embeddings, 8192);
}

TEST(RopeJson, ReadsTheNewerWay) {
  json config = Config();
  config.erase("rope_theta");
  config["rope_parameters"] = Llama3Scaling();
  config["rope_parameters"]["rope_theta"] = 1e6;
  auto model = ParseModelConfig(config.dump());
  ASSERT_THAT(model, testing::IsOk());
  EXPECT_EQ(model->rope_theta, 1e6);
  EXPECT_EQ(model->rope_scaling.type, RopeScaling::Type::kLlama3);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 2e4}};
  model = ParseModelConfig(config.dump());
  ASSERT_THAT(model, testing::IsOk());
  EXPECT_EQ(model->rope_theta, 2e4);
  EXPECT_EQ(model->rope_scaling.type, RopeScaling::Type::kDefault);
}

TEST(RopeJson, ReadsLinearAndDefault) {
  json config = Config();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  auto model = ParseModelConfig(config.dump());
  ASSERT_THAT(model, testing::IsOk());
  EXPECT_EQ(model->rope_scaling.type, RopeScaling::Type::kLinear);
  EXPECT_EQ(model->rope_scaling.factor, 4);
  config["rope_scaling"] = {{"type", "default"}, {"rope_type", "default"}};
  model = ParseModelConfig(config.dump());
  ASSERT_THAT(model, testing::IsOk());
  EXPECT_EQ(model->rope_scaling.type, RopeScaling::Type::kDefault);
  config["rope_scaling"] = json::object();
  EXPECT_THAT(ParseModelConfig(config.dump()), testing::IsOk());
}

TEST(RopeJson, RefusesByField) {
  const std::vector<std::pair<std::string, json>> changes = {
      {"rope_type", "yarn"},
      {"rope_type", "dynamic"},
      {"rope_type", 3},
      {"type", "linear"},  // Beside rope_type llama3.
      {"factor", "8"},
      {"factor", 0},
      {"factor", nullptr},
      {"low_freq_factor", -1},
      {"high_freq_factor", 1},  // Not above low_freq_factor.
      {"original_max_position_embeddings", 0.5},
      {"attention_factor", 1.2},
      {"partial_rotary_factor", 0.5},
      {"full_attention", {{"rope_type", "default"}}},
      {"rope_theta", 1e4},  // The other one is 500000.
      {"rope_theta", "x"},
  };
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    for (const auto& [field, value] : changes) {
      json config = Config();
      config[name] = Llama3Scaling();
      config[name][field] = value;
      EXPECT_THAT(ParseModelConfig(config.dump()),
                  testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                    StartsWith(std::string(name) + "." + field + ": ")))
          << value;
    }
    for (const char* field :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      json config = Config();
      config[name] = Llama3Scaling();
      config[name].erase(field);
      EXPECT_THAT(ParseModelConfig(config.dump()),
                  testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                    StartsWith(std::string(name) + "." + field + ": is missing")));
    }
  }
  json both = Config();
  both["rope_scaling"] = both["rope_parameters"] = Llama3Scaling();
  EXPECT_THAT(ParseModelConfig(both.dump()),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("rope_scaling: ")));
}

}  // namespace
}  // namespace fedshard
