// Proves that directives reach a worker exactly in order over streams that break, that its reports
// count once, and that only the newest incarnation of a node has a session.
#include "coordinator/service/node_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "common/testing/status_matchers.h"
#include "coordinator/service/errors.h"

namespace fedshard::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

class FakeStream : public NodeStream {
 public:
  void Send(const NodeMessage& message) override { sent.push_back(message); }
  void ReadNext() override {}
  void Close(const absl::Status& status) override { closed = status; }

  std::vector<uint64_t> Sequences() const {
    std::vector<uint64_t> out;
    for (const NodeMessage& message : sent) out.push_back(message.sequence);
    return out;
  }

  std::vector<NodeMessage> sent;
  std::optional<absl::Status> closed;
};

NodeRegistration Registration(const std::string& incarnation, uint64_t last_directive = 0,
                              const std::string& coordinator = "c1") {
  NodeRegistration registration;
  registration.node.node = "node-0";
  registration.node.incarnation = incarnation;
  registration.coordinator_incarnation = coordinator;
  registration.last_directive = last_directive;
  return registration;
}

class NodeSessionsTest : public ::testing::Test {
 protected:
  std::shared_ptr<FakeStream> Attach(const NodeRegistration& registration) {
    EXPECT_THAT(sessions_.Prepare("node-0", registration.node.incarnation), IsOk());
    auto stream = std::make_shared<FakeStream>();
    sessions_.Attach(registration, stream);
    return stream;
  }
  void SendStop(const std::string& incarnation = "w1") {
    sessions_.Send("node-0", incarnation, core::StopRanks{"job", 1, 100, ""});
  }

  NodeSessions sessions_{NodeSessionOptions{"c1", 2000, 3, 4}};
};

TEST_F(NodeSessionsTest, RegisteredComesFirstAndDirectivesAreNumbered) {
  ASSERT_THAT(sessions_.Prepare("node-0", "w1"), IsOk());
  SendStop();  // Decided by the registration itself: waits for the stream.
  const auto stream = Attach(Registration("w1", 0, ""));
  SendStop();
  EXPECT_THAT(stream->Sequences(), ElementsAre(0, 1, 2));
  const auto& registered = std::get<Registered>(stream->sent[0].directive);
  EXPECT_EQ(registered.coordinator_incarnation, "c1");
  EXPECT_EQ(registered.heartbeat_interval_ms, 2000);
  EXPECT_EQ(registered.last_report, 0u);
}

TEST_F(NodeSessionsTest, ResendsWhatWasNotProcessed) {
  const auto first = Attach(Registration("w1"));
  SendStop();
  SendStop();
  EXPECT_TRUE(sessions_.Detach(first.get()));
  SendStop();  // Without a stream.
  const auto second = Attach(Registration("w1", 1));
  EXPECT_THAT(second->Sequences(), ElementsAre(0, 2, 3));
  EXPECT_EQ(first->closed, std::nullopt);
}

TEST_F(NodeSessionsTest, AcknowledgementsOfAnotherCoordinatorDropNothing) {
  const auto first = Attach(Registration("w1", 0, ""));
  SendStop();
  sessions_.Detach(first.get());
  const auto second = Attach(Registration("w1", 7, "c0"));
  EXPECT_THAT(second->Sequences(), ElementsAre(0, 1));
}

TEST_F(NodeSessionsTest, HeartbeatsAcknowledgeBothWays) {
  const auto stream = Attach(Registration("w1"));
  SendStop();
  SendStop();
  EXPECT_EQ(sessions_.Admit(stream.get(), 1), NodeSessions::Admission::kNew);
  sessions_.Heartbeat(stream.get(), 2);
  EXPECT_EQ(std::get<Acknowledge>(stream->sent.back().directive).last_report, 1u);
  const auto next = Attach(Registration("w1", 2));
  EXPECT_THAT(next->Sequences(), ElementsAre(0));
}

TEST_F(NodeSessionsTest, AReportCountsOnceAlsoOverStreams) {
  const auto first = Attach(Registration("w1"));
  EXPECT_EQ(sessions_.Admit(first.get(), 1), NodeSessions::Admission::kNew);
  EXPECT_EQ(sessions_.Admit(first.get(), 2), NodeSessions::Admission::kNew);
  EXPECT_EQ(sessions_.Admit(first.get(), 2), NodeSessions::Admission::kDuplicate);
  const auto second = Attach(Registration("w1"));
  EXPECT_EQ(std::get<Registered>(second->sent[0].directive).last_report, 2u);
  EXPECT_EQ(sessions_.Admit(second.get(), 1), NodeSessions::Admission::kDuplicate);
  EXPECT_EQ(sessions_.Admit(second.get(), 3), NodeSessions::Admission::kNew);
}

TEST_F(NodeSessionsTest, AGapInReportsClosesTheStreamButNotTheSession) {
  const auto stream = Attach(Registration("w1"));
  EXPECT_EQ(sessions_.Admit(stream.get(), 2), NodeSessions::Admission::kRefused);
  ASSERT_TRUE(stream->closed.has_value());
  EXPECT_THAT(*stream->closed, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(sessions_.IsCurrent(stream.get()));
  const auto next = Attach(Registration("w1"));
  EXPECT_EQ(sessions_.Admit(next.get(), 1), NodeSessions::Admission::kNew);
  EXPECT_EQ(sessions_.Admit(next.get(), 0), NodeSessions::Admission::kRefused);
}

TEST_F(NodeSessionsTest, ANewIncarnationTakesOver) {
  const auto old_stream = Attach(Registration("w1"));
  SendStop("w1");
  const auto new_stream = Attach(Registration("w2"));
  ASSERT_TRUE(old_stream->closed.has_value());
  EXPECT_THAT(*old_stream->closed, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(ReasonOf(*old_stream->closed), kStaleIncarnation);
  EXPECT_FALSE(sessions_.Detach(old_stream.get()));
  SendStop("w1");  // To the dead: dropped.
  EXPECT_THAT(new_stream->Sequences(), ElementsAre(0));
  SendStop("w2");
  EXPECT_THAT(new_stream->Sequences(), ElementsAre(0, 1));
}

TEST_F(NodeSessionsTest, ARefusedRegistrationDisturbsNobody) {
  const auto stream = Attach(Registration("w2"));
  ASSERT_THAT(sessions_.Prepare("node-0", "w1"), IsOk());
  sessions_.Discard("node-0", "w1");
  SendStop("w1");
  EXPECT_TRUE(sessions_.IsCurrent(stream.get()));
  EXPECT_EQ(stream->closed, std::nullopt);
  sessions_.Discard("node-0", "w2");  // Attached: stays.
  SendStop("w2");
  EXPECT_THAT(stream->Sequences(), ElementsAre(0, 1));
}

TEST_F(NodeSessionsTest, ASecondStreamOfTheSameWorkerReplacesTheFirst) {
  const auto first = Attach(Registration("w1"));
  const auto second = Attach(Registration("w1"));
  ASSERT_TRUE(first->closed.has_value());
  EXPECT_THAT(*first->closed, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(sessions_.IsCurrent(second.get()));
  EXPECT_FALSE(sessions_.Detach(first.get()));
  EXPECT_TRUE(sessions_.IsCurrent(second.get()));
}

TEST_F(NodeSessionsTest, AnOverflowingOutboxDropsTheSessionForGood) {
  const auto stream = Attach(Registration("w1"));
  for (int i = 0; i < 4; ++i) SendStop();
  ASSERT_TRUE(stream->closed.has_value());
  EXPECT_EQ(ReasonOf(*stream->closed), kStaleIncarnation);
  EXPECT_THAT(sessions_.Prepare("node-0", "w1"), StatusIs(absl::StatusCode::kAborted));
  const auto anew = Attach(Registration("w2"));
  EXPECT_THAT(anew->Sequences(), ElementsAre(0));
}

TEST_F(NodeSessionsTest, TheNumberOfSessionsIsBounded) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(sessions_.Prepare("node-" + std::to_string(i), "w"), IsOk());
  }
  EXPECT_THAT(sessions_.Prepare("node-4", "w"), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace fedshard::service
