// What people and programs see: tables, JSON, the live screen, plain progress lines and the
// summary, all as functions of the resources.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/progress.h"
#include "cli/quantity.h"
#include "cli/suggest.h"
#include "cli/summary.h"

namespace fedshard::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

v1::Job Job() {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "jobs/play"
        uid: "7"
        state: JOB_STATE_RUNNING
        reason: "TRAINING"
        spec { mesh { mode: MESH_MODE_FL_HSDP federation_groups: 2 replicas: 2 shards: 2 } }
        progress {
          step: 50
          total_steps: 200
          committed_tokens: 98304
          total_tokens: 409600
          rounds_committed: 6
          loss: 2.5
          gradient_norm: 0.5
          learning_rate: 0.002
          tokens_per_second: 5659
          validation_loss: 2.75
          eta_seconds: 127
          groups { group: 0 step: 50 loss: 2.4 state: GROUP_STATE_TRAINING }
          groups { group: 1 step: 51 loss: 2.6 state: GROUP_STATE_READY }
        }
        result {
          steps: 50
          tokens: 98304
          rounds_committed: 6
          train_loss_first: 5.5
          train_loss_last: 2.5
          tokens_per_second: 5659
          wall_seconds: 20
          parameters: 3
          padded_parameters: 4
          parameter_hash: "ab"
          bytes_per_rank_per_step { shard: 10 replica: 20 federation: 30 }
        })pb",
      &job));
  return job;
}

TEST(Show, TableWideNameAndMachineForms) {
  const std::vector<v1::Job> jobs = {Job()};
  EXPECT_EQ(Show(jobs, Format::kTable),
            "NAME  STATE    REASON    MESH           STEP    DONE  LOSS    TOKENS/S\n"
            "play  RUNNING  TRAINING  fl+hsdp 2x2x2  50/200  25%   2.5000  5.659K\n");
  EXPECT_THAT(Show(jobs, Format::kWide), HasSubstr("98.3K"));
  EXPECT_EQ(Show(jobs, Format::kName), "jobs/play\n");
  const auto list = nlohmann::json::parse(Show(jobs, Format::kJson));
  EXPECT_EQ(list[0]["progress"]["rounds_committed"], "6");
  const auto one = nlohmann::json::parse(Show(jobs, Format::kJson, /*single=*/true));
  EXPECT_EQ(one["state"], "JOB_STATE_RUNNING");
  EXPECT_THAT(Show(jobs, Format::kYaml), HasSubstr("name: jobs/play"));
  EXPECT_EQ(nlohmann::json::parse(Show(std::vector<v1::Job>{}, Format::kJson)),
            nlohmann::json::array());
}

TEST(Show, GroupsAndRounds) {
  v1::Group group;
  group.set_name("jobs/play/groups/1");
  group.set_state(v1::GROUP_STATE_READY);
  v1::RankPlacement& rank = *group.add_ranks();
  rank.set_rank(4);
  rank.set_node("node-1");
  rank.set_slot(2);
  EXPECT_THAT(Show(std::vector<v1::Group>{group}, Format::kTable),
              HasSubstr("1      READY  0      0       4@node-1/2"));
  v1::Round round;
  round.set_number(3);
  round.set_state(v1::ROUND_STATE_COMMITTED);
  round.set_decision_seconds(0.0123);
  round.add_participants()->set_tokens(40);
  round.add_participants()->set_tokens(2);
  EXPECT_THAT(Show(std::vector<v1::Round>{round}, Format::kTable),
              AllOf(HasSubstr("COMMITTED"), HasSubstr("42"), HasSubstr("12.3ms")));
  EXPECT_THAT(Describe(Job(), {group}, {round}),
              AllOf(HasSubstr("State:"), HasSubstr("CONDITION"), HasSubstr("4@node-1/2"),
                    HasSubstr("COMMITTED")));
}

TEST(Screen, FitsTheWidthAndSaysEverything) {
  for (const int width : {20, 40, 80, 200}) {
    const auto lines = RenderScreen(Job(), {width, false});
    EXPECT_THAT(lines, Each(SizeIs(::testing::Le(static_cast<size_t>(width)))));
  }
  EXPECT_THAT(
      RenderScreen(Job(), {100, false}),
      ElementsAre("play  RUNNING  fl+hsdp 2x2x2",
                  "[##########..............................] step 50/200  round 6  ETA 2m 07s",
                  "loss 2.5000  validation 2.7500  5.659K tokens/s  lr 0.002",
                  "  group 0  step 50  loss 2.4000  TRAINING",
                  "  group 1  step 51  loss 2.6000  READY"));
}

TEST(Screen, AMessageWithLogLinesStaysOneLine) {
  v1::Job job = Job();
  const size_t lines = RenderScreen(job, {80, false}).size();
  job.set_message("rank 3 on node-1 was killed\x1b[31m by SIGKILL\nlast line of its log\nanother");
  const auto screen = RenderScreen(job, {80, false});
  EXPECT_EQ(screen.size(), lines + 1);
  EXPECT_EQ(screen.back(), "rank 3 on node-1 was killed [31m by SIGKILL");
}

TEST(Screen, ColourOnlyOnRequest) {
  EXPECT_THAT(RenderScreen(Job(), {80, false})[0], Not(HasSubstr("\x1b")));
  EXPECT_THAT(RenderScreen(Job(), {80, true})[0], HasSubstr("\x1b[36mRUNNING\x1b[0m"));
}

TEST(Changes, AreWorthALine) {
  v1::Job before = Job(), now = Job();
  EXPECT_EQ(RenderChange(before, now), "");
  now.mutable_progress()->set_step(51);
  EXPECT_EQ(RenderChange(before, now), "") << "a step alone is not";
  now.mutable_progress()->set_rounds_committed(7);
  EXPECT_THAT(RenderChange(before, now), StartsWith("round 7  step 51/200  loss 2.5000"));
  now.set_state(v1::JOB_STATE_FAILED);
  now.set_message("rank 3 is gone");
  EXPECT_EQ(RenderChange(before, now), "play FAILED: rank 3 is gone");
}

TEST(Summary, JsonHasTheDocumentedFieldsInOrderAndNullForUnknown) {
  const auto json = SummaryJson(Job(), "");
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys,
              ElementsAre("name", "state", "mode", "mesh", "steps", "tokens", "rounds_committed",
                          "rounds_aborted", "skipped_steps", "checkpoint", "train_loss",
                          "validation_loss", "validation_perplexity", "tokens_per_second",
                          "wall_seconds", "bytes_per_rank_per_step", "parameters",
                          "padded_parameters", "parameter_hash", "log_directory"));
  EXPECT_EQ(json["train_loss"]["last"], 2.5);
  EXPECT_TRUE(json["validation_loss"]["last"].is_null());
  EXPECT_TRUE(json["validation_perplexity"].is_null());
  EXPECT_TRUE(json["log_directory"].is_null());
  EXPECT_EQ(SummaryJson(Job(), "/kept")["log_directory"], "/kept");
  EXPECT_EQ(json["bytes_per_rank_per_step"]["replica"], 20);
}

TEST(Summary, TextShowsTheSampleOfByteTokensOnly) {
  v1::Job job = Job();
  for (const char c : std::string("Hi\n\x01!"))
    job.mutable_result()->add_sample_tokens(static_cast<unsigned char>(c));
  EXPECT_THAT(SummaryText(job), AllOf(HasSubstr("hash ab"), HasSubstr("Hi\n.!")));
  job.mutable_result()->add_sample_tokens(300);
  EXPECT_THAT(SummaryText(job), Not(HasSubstr("sample")));
}

TEST(Quantity, ParsesAndPrints) {
  EXPECT_EQ(ParseCount("2M"), 2'000'000);
  EXPECT_EQ(ParseCount("1.5K"), 1500);
  EXPECT_EQ(ParseCount("2e3"), 2000);
  for (const char* bad : {"", "x", "1.5", "2MB", "1e30", "nan"})
    EXPECT_EQ(ParseCount(bad), std::nullopt) << bad;
  EXPECT_EQ(ParseBytes("4MiB"), 4 << 20);
  EXPECT_EQ(ParseBytes("4MB"), std::nullopt);
  EXPECT_EQ(ParseFileSize("5GB"), 5'000'000'000);
  EXPECT_EQ(ParseFileSize("4MiB"), 4 << 20);
  EXPECT_EQ(ParseFileSize("5G"), std::nullopt);
  EXPECT_EQ(ParsePercentage("5%"), 0.05);
  EXPECT_EQ(ParsePercentage("101%"), std::nullopt);
  EXPECT_EQ(ShortSeconds(3720), "1h 02m");
}

TEST(Suggest, TyposButNotStrangers) {
  EXPECT_EQ(Closest("modle", {"model", "mesh"}), "model");
  EXPECT_EQ(Closest("federatoin", {"federation", "evaluation"}), "federation");
  EXPECT_EQ(Closest("zebra", {"model", "mesh"}), "");
}

}  // namespace
}  // namespace fedshard::cli
