// The small pure parts of the trainer: who evaluates which windows, and settings from a
// specification.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/testing/status_matchers.h"
#include "fedshard/v1/job.pb.h"
#include "worker/trainer/evaluation_plan.h"
#include "worker/trainer/settings.h"

namespace fedshard::trainer {
namespace {

TEST(EvaluationWindows, EveryWindowOnceAndEqualCallsInAGroup) {
  for (const Mesh& mesh :
       {Mesh{1, 1, 1}, Mesh{1, 1, 4}, Mesh{1, 2, 3}, Mesh{2, 2, 2}, Mesh{3, 1, 2}}) {
    for (const int64_t windows : {0, 1, 5, 8, 64, 67}) {
      std::map<int64_t, int> seen;
      std::map<int, std::set<size_t>> calls;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const auto mine = EvaluationWindows(mesh, rank, windows);
        calls[mesh.CoordinatesOf(rank).group].insert(mine.size());
        for (const int64_t window : mine) {
          if (window >= 0) ++seen[window];
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), windows);
      for (const auto& [window, count] : seen) {
        EXPECT_EQ(count, 1);
        EXPECT_LT(window, windows);
      }
      for (const auto& [group, counts] : calls) EXPECT_EQ(counts.size(), 1u);
    }
  }
}

v1::JobSpec Spec() {
  v1::JobSpec spec;
  const bool parsed = google::protobuf::TextFormat::ParseFromString(
      R"pb(
        id: "a"
        model {
          init: MODEL_INIT_RANDOM
          seed: 3
          config_json: '{"architectures": ["LlamaForCausalLM"], '
                       '"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, '
                       '"num_attention_heads": 4, "max_position_embeddings": 128}'
        }
        data {
          train: "/t.bin"
          validation: "/v.bin"
          sequence_length: 32
          seed: 9
          order: SAMPLE_ORDER_SEQUENTIAL
        }
        mesh { mode: MESH_MODE_HSDP federation_groups: 1 replicas: 2 shards: 4 }
        training {
          steps: 10
          micro_batch: 3
          accumulation: 2
          check_replicas_every: 5
          precision: PRECISION_BF16
          gather_precision: PRECISION_BF16
          recompute: RECOMPUTE_SELECTIVE
          accumulate: ACCUMULATE_LOCAL
          non_finite_limit: 4
          optimizer {
            type: OPTIMIZER_TYPE_SGD
            learning_rate: 0.5
            momentum: 0.9
            clip: 2
            weight_decay: 0.25
          }
          schedule { type: SCHEDULE_TYPE_COSINE warmup_tokens: 100 final_ratio: 0.2 }
        }
        federation { every_steps: 4 weighting: WEIGHTING_EQUAL chunk_bytes: 8192 }
        evaluation {
          sequences: 7
          sample {
            prompt_tokens: [ 1, 2 ]
            tokens: 5
            temperature: 0.5
            seed: 4
          }
        }
        checkpoint {
          directory: "/c"
          keep: 2
          resume { path: "/c/step-00000005" step: 5 tokens: 1000 next_sample: 40 }
        }
        resources { device: DEVICE_CPU threads_per_rank: 2 collective_timeout_seconds: 7 })pb",
      &spec);
  EXPECT_TRUE(parsed);
  return spec;
}

TEST(Settings, CarryEverything) {
  const auto s = ParseSettings(Spec().SerializeAsString());
  ASSERT_THAT(s, testing::IsOk());
  EXPECT_EQ(s->model.hidden_size, 64);
  EXPECT_EQ(s->model_seed, 3u);
  EXPECT_EQ(s->train_path, "/t.bin");
  EXPECT_EQ(s->validation_path, "/v.bin");
  EXPECT_EQ(s->data_seed, 9u);
  EXPECT_FALSE(s->shuffled);
  EXPECT_EQ(s->mesh, (Mesh{1, 2, 4}));
  EXPECT_FALSE(s->averages);
  EXPECT_FALSE(s->optimizer.adamw);
  EXPECT_EQ(s->optimizer.momentum, 0.9);
  EXPECT_EQ(s->optimizer.clip, 2);
  EXPECT_EQ(s->optimizer.weight_decay, 0.25);
  EXPECT_EQ(s->samples_per_step(), 3 * 2 * 8);
  EXPECT_EQ(s->schedule.peak, 0.5);
  EXPECT_EQ(s->schedule.warmup_tokens, 100);
  EXPECT_EQ(s->schedule.total_tokens, 1000 + 5 * 48 * 32) << "before and after the resume point";
  EXPECT_EQ(s->schedule.final_ratio, 0.2);
  EXPECT_EQ(s->check_replicas_every, 5);
  EXPECT_EQ(s->federation.chunk_bytes, 8192);
  EXPECT_TRUE(s->step.bf16);
  EXPECT_TRUE(s->step.gather_bf16);
  EXPECT_FALSE(s->step.reduce_bf16);
  EXPECT_EQ(s->step.recompute, RecomputeSetting::kSelective);
  EXPECT_TRUE(s->step.accumulate_locally);
  EXPECT_EQ(s->non_finite_limit, 4);
  EXPECT_EQ(s->checkpoint.directory, "/c");
  EXPECT_EQ(s->checkpoint.keep, 2);
  EXPECT_EQ(s->checkpoint.resume, "/c/step-00000005");
  EXPECT_EQ(s->evaluation_sequences, 7);
  EXPECT_EQ(s->sample.prompt, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(s->sample.tokens, 5);
  EXPECT_EQ(s->threads, 2);
  EXPECT_EQ(s->collective_timeout_ms, 7000);
}

TEST(Settings, CarryTheFederation) {
  v1::JobSpec spec = Spec();
  spec.mutable_mesh()->set_mode(v1::MESH_MODE_FL_HSDP);
  spec.mutable_mesh()->set_federation_groups(2);
  v1::FederationSpec& federation = *spec.mutable_federation();
  federation.set_compression(v1::COMPRESSION_INT8);
  federation.set_optimizer_state(v1::MOMENTS_POLICY_RESET);
  v1::OuterOptimizerSpec& outer = *federation.mutable_outer_optimizer();
  outer.set_type(v1::OUTER_OPTIMIZER_TYPE_NESTEROV);
  outer.set_learning_rate(0.7);
  outer.set_momentum(0.9);
  const auto s = ParseSettings(spec.SerializeAsString());
  ASSERT_THAT(s, testing::IsOk());
  EXPECT_EQ(s->federation.compression, Compression::kInt8);
  EXPECT_EQ(s->federation.moments, MomentsPolicy::kReset);
  EXPECT_EQ(s->federation.outer, OuterOptimizer::kNesterov);
  EXPECT_EQ(s->federation.learning_rate, 0.7);
  EXPECT_EQ(s->federation.momentum, 0.9);
}

TEST(Settings, RefuseGarbageAndBadFields) {
  EXPECT_THAT(ParseSettings("\xff\xff"), testing::StatusIs(absl::StatusCode::kInvalidArgument));
  v1::JobSpec spec = Spec();
  spec.mutable_training()->set_micro_batch(0);
  EXPECT_THAT(
      ParseSettings(spec.SerializeAsString()),
      testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("micro_batch")));
}

}  // namespace
}  // namespace fedshard::trainer
