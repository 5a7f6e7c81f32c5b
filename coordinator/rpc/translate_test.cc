// Proves the pure parts of the adapters: errors and their trailer, names and page tokens, and
// the translation of specs, reports and directives field by field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "coordinator/rpc/errors.h"
#include "coordinator/rpc/names.h"
#include "coordinator/rpc/testing/fake_worker.h"
#include "coordinator/rpc/translate_job.h"
#include "coordinator/rpc/translate_worker.h"
#include "coordinator/service/errors.h"

namespace fedshard::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ErrorsTest, CodeTextAndReasonReachTheWire) {
  const WireError error =
      ToWire(service::WithReason(absl::AbortedError("gone"), service::kScopeGone));
  EXPECT_EQ(error.status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(error.status.error_message(), "gone");
  EXPECT_EQ(error.detail.reason(), "SCOPE_GONE");
  EXPECT_EQ(ToWire(absl::DataLossError("x")).status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_TRUE(ToWire(absl::OkStatus()).status.ok());
}

TEST(ErrorsTest, ViolationsAreInTextAndDetailAndBounded) {
  Violations violations;
  for (int i = 0; i < 40; ++i) {
    violations.Add("spec.field" + std::to_string(i), std::string(500, 'x'));
  }
  const WireError error = ToWire(violations);
  EXPECT_EQ(error.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(error.status.error_message(), HasSubstr("spec.field0: xxx"));
  EXPECT_EQ(error.detail.reason(), "INVALID_FIELD");
  EXPECT_LE(error.detail.violations_size(), 16);
  EXPECT_LT(error.detail.ByteSizeLong() + error.status.error_message().size(), 8192u);
}

TEST(NamesTest, JobNames) {
  Violations violations;
  EXPECT_EQ(ParseJobName("jobs/demo-1", "name", violations), "demo-1");
  EXPECT_TRUE(violations.empty());
  for (const char* bad :
       {"", "demo", "jobs/", "jobs/Demo", "jobs/1", "jobs/a/rounds", "jobs/..", "nodes/demo"}) {
    Violations found;
    ParseJobName(bad, "name", found);
    EXPECT_EQ(found.list.size(), 1u) << bad;
  }
}

TEST(NamesTest, PageTokensBelongToTheirList) {
  Violations violations;
  const std::string token = PageToken("jobs", "demo");
  EXPECT_EQ(ParsePage(0, token, "jobs", violations).after, "demo");
  EXPECT_EQ(ParsePage(0, "", "jobs", violations).size, 50u);
  EXPECT_EQ(ParsePage(5000, "", "jobs", violations).size, 1000u);
  EXPECT_TRUE(violations.empty());
  ParsePage(0, token, "nodes", violations);
  ParsePage(0, "!!", "jobs", violations);
  ParsePage(-1, "", "jobs", violations);
  EXPECT_EQ(violations.list.size(), 3u);
}

TEST(TranslateTest, TheCoreGetsWhatItNeedsOfASpec) {
  v1::JobSpec spec = TestSpec("demo");
  spec.mutable_training()->set_accumulation(3);
  spec.mutable_evaluation()->set_every_rounds(5);
  const core::JobSpec out = SpecToCore(spec);
  EXPECT_EQ(out.id, "demo");
  EXPECT_EQ(out.mesh.groups, 2);
  EXPECT_EQ(out.mesh.shards, 2);
  EXPECT_TRUE(out.averages);
  EXPECT_TRUE(out.weight_by_tokens);
  EXPECT_EQ(out.total_steps, 2);
  EXPECT_EQ(out.steps_per_round, 1);
  EXPECT_EQ(out.samples_per_step, 2 * 3 * 2);
  EXPECT_EQ(out.tokens_per_sample, 16);
  EXPECT_TRUE(out.evaluates);
  EXPECT_EQ(out.evaluate_every_rounds, 5);
  EXPECT_EQ(out.blob, spec.SerializeAsString());
  spec.mutable_mesh()->set_mode(v1::MESH_MODE_HSDP);
  spec.mutable_federation()->set_weighting(v1::WEIGHTING_EQUAL);
  spec.mutable_evaluation()->set_sequences(0);
  EXPECT_FALSE(SpecToCore(spec).averages);
  EXPECT_FALSE(SpecToCore(spec).weight_by_tokens);
  EXPECT_FALSE(SpecToCore(spec).evaluates);
}

TEST(TranslateTest, AVoteKeepsItsFields) {
  v1::ConnectRequest message;
  v1::RankReported& reported = *message.mutable_rank_reported();
  reported.set_job("demo");
  reported.set_generation(7);
  reported.set_rank(3);
  v1::RankVote& vote = *reported.mutable_report()->mutable_vote();
  vote.set_round(4);
  vote.set_attempt(2);
  vote.set_shard_hash(std::numeric_limits<uint64_t>::max());
  vote.set_shard_bytes(1);
  vote.set_replica_bytes(2);
  vote.set_federation_bytes(3);
  const auto report = ReportFromProto(message);
  ASSERT_TRUE(report.has_value());
  const auto& out = std::get<core::RankVote>(*report);
  EXPECT_EQ(out.from.job, "demo");
  EXPECT_EQ(out.from.generation, 7u);
  EXPECT_EQ(out.from.rank, 3);
  EXPECT_EQ(out.from.node, "");  // The session's business.
  EXPECT_EQ(out.round, 4);
  EXPECT_EQ(out.attempt, 2);
  EXPECT_EQ(out.shard_hash, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(out.bytes.shard, 1);
  EXPECT_EQ(out.bytes.replica, 2);
  EXPECT_EQ(out.bytes.federation, 3);
}

TEST(TranslateTest, HostileLogTimesStayInRange) {
  v1::ConnectRequest message;
  v1::LogLine& line = *message.mutable_log_lines()->add_lines();
  line.mutable_time()->set_seconds(std::numeric_limits<int64_t>::max());
  const auto report = ReportFromProto(message);
  ASSERT_TRUE(report.has_value());
  const int64_t us = std::get<service::LogLines>(*report).lines.at(0).wall_us;
  EXPECT_EQ(TimeToProto(us).seconds(), 253'402'300'799);
}

TEST(TranslateTest, EmptyReportsAreNone) {
  v1::ConnectRequest message;
  EXPECT_FALSE(ReportFromProto(message).has_value());
  message.mutable_rank_reported()->set_job("demo");
  EXPECT_FALSE(ReportFromProto(message).has_value());
}

TEST(TranslateTest, ADecisionKeepsItsFields) {
  core::RoundDecision decision;
  decision.round = 3;
  decision.attempt = 2;
  decision.commit = true;
  decision.evaluate = true;
  decision.message = "broken \xe2";
  decision.next = core::RoundAssignment{4, 5, {60, 20}, 15, 999, 64};
  const v1::ConnectResponse out = MessageToProto({9, core::DirectRanks{"demo", 7, decision}});
  EXPECT_EQ(out.sequence(), 9u);
  EXPECT_EQ(out.direct_ranks().job(), "demo");
  EXPECT_EQ(out.direct_ranks().generation(), 7u);
  const v1::RoundDecision& message = out.direct_ranks().directive().decision();
  EXPECT_EQ(message.round(), 3);
  EXPECT_EQ(message.attempt(), 2);
  EXPECT_TRUE(message.commit());
  EXPECT_TRUE(message.evaluate());
  EXPECT_FALSE(message.finish());
  EXPECT_EQ(message.message(), "broken ?");
  EXPECT_EQ(message.next().round(), 4);
  EXPECT_EQ(message.next().steps(), 5);
  EXPECT_EQ(message.next().lease().first_sample(), 60);
  EXPECT_EQ(message.next().lease().sample_count(), 20);
  EXPECT_EQ(message.next().first_step(), 15);
  EXPECT_EQ(message.next().committed_tokens(), 999);
  EXPECT_EQ(message.next().tokens_per_step(), 64);
}

TEST(TranslateTest, ARegistrationIsCheckedFieldByField) {
  v1::Register message;
  message.set_node_id("node-0");
  message.set_incarnation("w1");
  message.set_slots(4);
  message.set_data_address("127.0.0.1");
  v1::Label& label = *message.add_labels();
  label.set_key("rack");
  label.set_value("a");
  Violations none;
  const service::NodeRegistration out = RegistrationFromProto(message, none);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(out.node.slots, 4);
  EXPECT_EQ(out.node.labels.at("rack"), "a");

  *message.add_labels() = label;
  message.set_node_id("Node 0");
  message.clear_incarnation();
  message.set_slots(-1);
  message.set_data_address(std::string(300, 'x'));
  Violations violations;
  RegistrationFromProto(message, violations);
  std::vector<std::string> fields;
  for (const auto& violation : violations.list) fields.push_back(violation.field());
  EXPECT_THAT(fields, ElementsAre("register.node_id", "register.incarnation",
                                  "register.data_address", "register.slots", "register.labels"));
}

}  // namespace
}  // namespace fedshard::rpc
