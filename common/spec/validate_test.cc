// Each rule of a job specification is enforced and names its field.
#include "common/spec/validate.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace fedshard {
namespace {

v1::JobSpec Valid() {
  v1::JobSpec spec;
  const bool parsed = google::protobuf::TextFormat::ParseFromString(
      R"pb(
        id: "shakespeare"
        model {
          init: MODEL_INIT_RANDOM
          seed: 1
          config_json: '{"architectures": ["LlamaForCausalLM"], '
                       '"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, '
                       '"num_attention_heads": 4, "max_position_embeddings": 128}'
        }
        data {
          train: "/d/train.bin"
          validation: "/d/validation.bin"
          sequence_length: 128
          order: SAMPLE_ORDER_SHUFFLED
        }
        mesh { mode: MESH_MODE_FL_HSDP federation_groups: 2 replicas: 2 shards: 2 }
        training {
          steps: 200
          micro_batch: 2
          accumulation: 1
          optimizer {
            type: OPTIMIZER_TYPE_ADAMW
            learning_rate: 0.002
            beta1: 0.9
            beta2: 0.95
            eps: 1e-8
            weight_decay: 0.1
            clip: 1
          }
          schedule { type: SCHEDULE_TYPE_COSINE warmup_tokens: 1000 final_ratio: 0.1 }
        }
        federation { every_steps: 8 weighting: WEIGHTING_TOKENS chunk_bytes: 4194304 }
        evaluation {
          every_rounds: 5
          sequences: 64
          sample { prompt_tokens: 10 tokens: 10 temperature: 1 }
        }
        resources { device: DEVICE_CPU threads_per_rank: 1 collective_timeout_seconds: 60 })pb",
      &spec);
  EXPECT_TRUE(parsed);
  return spec;
}

TEST(ValidateSpec, AcceptsTheExampleAndComputesItsNumbers) {
  const v1::JobSpec spec = Valid();
  for (const auto& violation : ValidateSpec(spec)) ADD_FAILURE() << violation.ShortDebugString();
  EXPECT_EQ(WorldSize(spec), 8);
  EXPECT_EQ(SamplesPerGroupStep(spec), 8);
  EXPECT_EQ(TokensPerStep(spec), 2048);
  EXPECT_EQ(TotalTokens(spec), 409600);
  EXPECT_TRUE(Averages(spec));
}

// A good outer optimizer of any type.
v1::OuterOptimizerSpec& SetOuter(v1::JobSpec& spec, v1::OuterOptimizerType type) {
  v1::OuterOptimizerSpec& outer = *spec.mutable_federation()->mutable_outer_optimizer();
  outer.set_type(type);
  outer.set_learning_rate(0.7);
  outer.set_momentum(0.9);
  outer.set_beta1(0.9);
  outer.set_beta2(0.99);
  outer.set_eps(1e-3);
  return outer;
}

TEST(ValidateSpec, AcceptsEachOuterOptimizer) {
  for (int type = 0; type < v1::OuterOptimizerType_ARRAYSIZE; ++type) {
    v1::JobSpec spec = Valid();
    SetOuter(spec, static_cast<v1::OuterOptimizerType>(type));
    for (const auto& violation : ValidateSpec(spec)) ADD_FAILURE() << violation.ShortDebugString();
  }
}

struct Case {
  const char* field;
  std::function<void(v1::JobSpec&)> change;
};

TEST(ValidateSpec, RefusesByField) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases = {
      {"id", [](auto& s) { s.set_id("Not A Label"); }},
      {"model.init", [](auto& s) { s.mutable_model()->clear_init(); }},
      {"model.config", [](auto& s) { s.mutable_model()->set_config_json("{}"); }},
      {"data.train", [](auto& s) { s.mutable_data()->set_train("train.bin"); }},
      {"data.validation", [](auto& s) { s.mutable_data()->clear_validation(); }},
      {"data.sequence_length", [](auto& s) { s.mutable_data()->set_sequence_length(0); }},
      {"data.sequence_length", [](auto& s) { s.mutable_data()->set_sequence_length(129); }},
      {"data.order", [](auto& s) { s.mutable_data()->clear_order(); }},
      {"mesh.mode", [](auto& s) { s.mutable_mesh()->clear_mode(); }},
      {"mesh.federation_groups", [](auto& s) { s.mutable_mesh()->set_federation_groups(1); }},
      {"mesh.federation_groups", [](auto& s) { s.mutable_mesh()->set_mode(v1::MESH_MODE_HSDP); }},
      {"mesh.replicas", [](auto& s) { s.mutable_mesh()->set_mode(v1::MESH_MODE_FL_FSDP); }},
      {"mesh.replicas", [](auto& s) { s.mutable_mesh()->set_replicas(0); }},
      {"mesh.shards", [](auto& s) { s.mutable_mesh()->set_shards(-3); }},
      {"mesh", [](auto& s) { s.mutable_mesh()->set_shards(1 << 20); }},
      {"training.steps", [](auto& s) { s.mutable_training()->set_steps(0); }},
      {"training.steps", [](auto& s) { s.mutable_training()->set_steps(int64_t{1} << 62); }},
      {"training.micro_batch", [](auto& s) { s.mutable_training()->set_micro_batch(0); }},
      {"training.accumulation", [](auto& s) { s.mutable_training()->set_accumulation(0); }},
      {"training.optimizer.type",
       [](auto& s) { s.mutable_training()->mutable_optimizer()->clear_type(); }},
      {"training.optimizer.learning_rate",
       [=](auto& s) { s.mutable_training()->mutable_optimizer()->set_learning_rate(nan); }},
      {"training.optimizer.learning_rate",
       [=](auto& s) { s.mutable_training()->mutable_optimizer()->set_learning_rate(-1); }},
      {"training.optimizer.clip",
       [=](auto& s) { s.mutable_training()->mutable_optimizer()->set_clip(inf); }},
      {"training.optimizer.beta1",
       [](auto& s) { s.mutable_training()->mutable_optimizer()->set_beta1(1); }},
      {"training.optimizer.beta2",
       [](auto& s) { s.mutable_training()->mutable_optimizer()->set_beta2(-0.1); }},
      {"training.schedule.type",
       [](auto& s) { s.mutable_training()->mutable_schedule()->clear_type(); }},
      {"training.schedule.warmup_tokens",
       [](auto& s) { s.mutable_training()->mutable_schedule()->set_warmup_tokens(-1); }},
      {"training.schedule.final_ratio",
       [](auto& s) { s.mutable_training()->mutable_schedule()->set_final_ratio(2); }},
      {"federation.every_steps", [](auto& s) { s.mutable_federation()->set_every_steps(0); }},
      {"federation.chunk_bytes", [](auto& s) { s.mutable_federation()->set_chunk_bytes(1); }},
      {"federation.weighting", [](auto& s) { s.mutable_federation()->clear_weighting(); }},
      {"federation.outer_optimizer.type",
       [](auto& s) { SetOuter(s, static_cast<v1::OuterOptimizerType>(9)); }},
      {"federation.outer_optimizer.learning_rate",
       [=](auto& s) { SetOuter(s, v1::OUTER_OPTIMIZER_TYPE_MOMENTUM).set_learning_rate(nan); }},
      {"federation.outer_optimizer.momentum",
       [](auto& s) { SetOuter(s, v1::OUTER_OPTIMIZER_TYPE_NESTEROV).set_momentum(1); }},
      {"federation.outer_optimizer.beta2",
       [](auto& s) { SetOuter(s, v1::OUTER_OPTIMIZER_TYPE_ADAM).set_beta2(-0.1); }},
      {"federation.outer_optimizer.eps",
       [](auto& s) { SetOuter(s, v1::OUTER_OPTIMIZER_TYPE_ADAM).set_eps(0); }},
      {"federation.outer_optimizer",
       [](auto& s) {
         SetOuter(s, v1::OUTER_OPTIMIZER_TYPE_ADAM);
         s.mutable_mesh()->set_mode(v1::MESH_MODE_HSDP);
       }},
      {"federation.optimizer_state",
       [](auto& s) {
         s.mutable_federation()->set_optimizer_state(static_cast<v1::MomentsPolicy>(9));
       }},
      {"federation.compression",
       [](auto& s) { s.mutable_federation()->set_compression(static_cast<v1::Compression>(9)); }},
      {"evaluation.sequences", [](auto& s) { s.mutable_evaluation()->set_sequences(-1); }},
      {"evaluation.sample.prompt",
       [](auto& s) { s.mutable_evaluation()->mutable_sample()->set_prompt_tokens(0, 256); }},
      {"evaluation.sample.tokens",
       [](auto& s) { s.mutable_evaluation()->mutable_sample()->set_tokens(0); }},
      {"resources.device", [](auto& s) { s.mutable_resources()->clear_device(); }},
      {"resources.threads_per_rank",
       [](auto& s) { s.mutable_resources()->set_threads_per_rank(0); }},
      {"resources.collective_timeout",
       [](auto& s) { s.mutable_resources()->set_collective_timeout_seconds(0); }},
  };
  for (const Case& c : cases) {
    v1::JobSpec spec = Valid();
    c.change(spec);
    std::vector<std::string> fields;
    for (const auto& violation : ValidateSpec(spec)) fields.push_back(violation.field());
    EXPECT_THAT(fields, ::testing::Contains(c.field));
  }
}

TEST(ValidateSpec, AnEmptySpecHasManyViolationsAndDoesNotCrash) {
  EXPECT_GT(ValidateSpec(v1::JobSpec()).size(), 8u);
}

}  // namespace
}  // namespace fedshard
