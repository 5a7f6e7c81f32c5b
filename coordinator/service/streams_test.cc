// Proves who is shown a job and when (watchers), and that log lines reach their readers from every
// node or the missing node is named (log streams).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "common/testing/status_matchers.h"
#include "coordinator/service/errors.h"
#include "coordinator/service/log_streams.h"
#include "coordinator/service/watchers.h"

namespace fedshard::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// A running job "job" with rank 0 on node-0 and rank 1 on node-1.
core::State RunningState() {
  core::State state;
  core::Job& job = state.jobs["job"];
  job.spec.id = "job";
  job.spec.mesh = {1, 1, 2};
  job.state = core::JobState::kRunning;
  core::Group group;
  group.ranks = {{{0, "node-0", 0}, core::RankState::kRunning},
                 {{1, "node-1", 0}, core::RankState::kRunning}};
  job.groups.push_back(group);
  for (const char* id : {"node-0", "node-1"}) {
    state.nodes[id].id = id;
    state.nodes[id].incarnation = "w1";
  }
  return state;
}

void End(core::State& state) {
  core::Job& job = state.jobs["job"];
  job.state = core::JobState::kCompleted;
  job.conditions["Stopped"].active = true;
}

class FakeWatcher : public JobWatcher {
 public:
  void Show(const View&, const core::Job&, bool is_last) override {
    ++shown;
    last = is_last;
  }
  void Fail(const absl::Status& status) override { failed = status; }

  int shown = 0;
  bool last = false;
  std::optional<absl::Status> failed;
};

class WatchersTest : public ::testing::Test {
 protected:
  View At(int64_t us) { return View{state_, telemetry_, {us, us}}; }

  core::State state_ = RunningState();
  Telemetry telemetry_{{}};
  Watchers watchers_{WatcherOptions{200, 2}};
  std::shared_ptr<FakeWatcher> watcher_ = std::make_shared<FakeWatcher>();
};

TEST_F(WatchersTest, ChangesAreShownAtOnceAndProgressNowAndThen) {
  watchers_.Add(At(1000), "job", watcher_);
  EXPECT_EQ(watcher_->shown, 1);
  watchers_.Flush(At(1001));
  EXPECT_EQ(watcher_->shown, 1);
  watchers_.Changed("job");
  watchers_.Flush(At(1002));
  EXPECT_EQ(watcher_->shown, 2);
  watchers_.Progressed("job");
  watchers_.Flush(At(1100));
  EXPECT_EQ(watcher_->shown, 2);
  EXPECT_EQ(watchers_.next_deadline_us(), 1202);
  watchers_.Flush(At(1202));
  EXPECT_EQ(watcher_->shown, 3);
  EXPECT_EQ(watchers_.next_deadline_us(), std::nullopt);
}

TEST_F(WatchersTest, TheLastOneIsShownWhenTheJobHasStopped) {
  watchers_.Add(At(1000), "job", watcher_);
  state_.jobs["job"].state = core::JobState::kFailed;
  watchers_.Changed("job");
  watchers_.Flush(At(1001));
  EXPECT_EQ(watcher_->shown, 2);
  EXPECT_FALSE(watcher_->last);
  End(state_);
  watchers_.Changed("job");
  watchers_.Flush(At(1002));
  EXPECT_TRUE(watcher_->last);
  watchers_.Changed("job");
  watchers_.Flush(At(1003));
  EXPECT_EQ(watcher_->shown, 3);
  const auto late = std::make_shared<FakeWatcher>();
  watchers_.Add(At(1004), "job", late);
  EXPECT_TRUE(late->last);
}

TEST_F(WatchersTest, UnknownJobsAndTooManyWatchersAreRefused) {
  watchers_.Add(At(1), "other", watcher_);
  ASSERT_TRUE(watcher_->failed.has_value());
  EXPECT_EQ(ReasonOf(*watcher_->failed), kJobNotFound);
  const auto first = std::make_shared<FakeWatcher>();
  const auto second = std::make_shared<FakeWatcher>();
  const auto third = std::make_shared<FakeWatcher>();
  watchers_.Add(At(1), "job", first);
  watchers_.Add(At(1), "job", second);
  watchers_.Add(At(1), "job", third);
  ASSERT_TRUE(third->failed.has_value());
  EXPECT_THAT(*third->failed, StatusIs(absl::StatusCode::kResourceExhausted));
  watchers_.Remove(first.get());
  watchers_.Add(At(1), "job", std::make_shared<FakeWatcher>());
  watchers_.CloseAll(absl::UnavailableError("bye"));
  EXPECT_TRUE(second->failed.has_value());
  EXPECT_FALSE(first->failed.has_value());
}

class FakeReader : public LogReader {
 public:
  bool Take(const core::NodeId& node, const std::vector<LogLine>& more) override {
    for (const LogLine& line : more) lines.push_back(node + ": " + line.line);
    return lines.size() <= 3;
  }
  void EndOfLogs(const absl::Status& status) override { end = status; }

  std::vector<std::string> lines;
  std::optional<absl::Status> end;
};

class LogStreamsTest : public ::testing::Test {
 protected:
  void Open(LogRequest request, int64_t now_us = 0) {
    logs_.Open(state_, std::move(request), reader_, now_us);
  }
  // "node-0 read 1" for each directive sent.
  std::vector<std::string> Sent() { return std::exchange(sent_, {}); }

  core::State state_ = RunningState();
  std::vector<std::string> sent_;
  LogStreams logs_{
      {1000, 2}, [this](const core::NodeId& node, const std::string&, NodeDirective directive) {
        const auto* read = std::get_if<ReadLogs>(&directive);
        sent_.push_back(read != nullptr
                            ? node + " read " + std::to_string(read->log_request)
                            : node + " stop " +
                                  std::to_string(std::get<StopLogs>(directive).log_request));
      }};
  std::shared_ptr<FakeReader> reader_ = std::make_shared<FakeReader>();
};

TEST_F(LogStreamsTest, EndsWhenEveryNodeHasSaidAll) {
  Open({"job", {}, 100, false});
  EXPECT_THAT(Sent(), ElementsAre("node-0 read 1", "node-1 read 1"));
  logs_.Lines("node-0", {1, {{0, 0, "a"}}, true});
  logs_.Lines("node-2", {1, {{9, 0, "from a stranger"}}, true});
  EXPECT_FALSE(reader_->end.has_value());
  logs_.Lines("node-1", {1, {{1, 0, "b"}}, true});
  EXPECT_THAT(reader_->lines, ElementsAre("node-0: a", "node-1: b"));
  ASSERT_TRUE(reader_->end.has_value());
  EXPECT_THAT(*reader_->end, IsOk());
}

TEST_F(LogStreamsTest, AsksOnlyTheNodesOfTheWantedRanks) {
  Open({"job", {1}, 100, false});
  EXPECT_THAT(Sent(), ElementsAre("node-1 read 1"));
}

TEST_F(LogStreamsTest, NamesTheNodeThatDoesNotAnswer) {
  Open({"job", {}, 100, false});
  logs_.Lines("node-0", {1, {{0, 0, "a"}}, true});
  EXPECT_EQ(logs_.next_deadline_us(), 1000);
  Sent();
  logs_.Expire(1000);
  EXPECT_THAT(Sent(), ElementsAre("node-1 stop 1"));
  ASSERT_TRUE(reader_->end.has_value());
  EXPECT_THAT(*reader_->end, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node-1")));
  EXPECT_THAT(reader_->lines, ElementsAre("node-0: a"));
}

TEST_F(LogStreamsTest, ALostNodeIsNotWaitedFor) {
  Open({"job", {}, 100, false});
  logs_.Lines("node-0", {1, {}, true});
  logs_.NodeGone("node-1");
  ASSERT_TRUE(reader_->end.has_value());
  EXPECT_THAT(*reader_->end, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node-1")));
}

TEST_F(LogStreamsTest, FollowersStayUntilTheJobEndsAndGetWhatIsLeft) {
  Open({"job", {}, 100, true});
  EXPECT_EQ(logs_.next_deadline_us(), std::nullopt);
  logs_.Lines("node-0", {1, {{0, 0, "a"}}, true});
  logs_.Lines("node-1", {1, {{1, 0, "b"}}, false});
  EXPECT_FALSE(reader_->end.has_value());
  End(state_);
  logs_.JobEnded("job", 500);
  EXPECT_FALSE(reader_->end.has_value());
  logs_.Lines("node-1", {1, {{1, 0, "c"}}, true});
  EXPECT_THAT(reader_->lines, ElementsAre("node-0: a", "node-1: b", "node-1: c"));
  ASSERT_TRUE(reader_->end.has_value());
  EXPECT_THAT(*reader_->end, IsOk());
}

TEST_F(LogStreamsTest, FollowersOfAQueuedJobBeginWithItsRanks) {
  core::Job& job = state_.jobs["job"];
  const std::vector<core::Group> groups = std::exchange(job.groups, {});
  job.state = core::JobState::kQueued;
  Open({"job", {}, 100, true});
  EXPECT_TRUE(Sent().empty());
  EXPECT_FALSE(reader_->end.has_value());
  job.groups = groups;
  logs_.RanksStarted(state_, "job", "node-0");
  logs_.RanksStarted(state_, "job", "node-0");
  EXPECT_THAT(Sent(), ElementsAre("node-0 read 1"));
}

TEST_F(LogStreamsTest, LeavingStopsTheNodes) {
  Open({"job", {}, 100, true});
  Sent();
  logs_.Leave(reader_.get());
  EXPECT_THAT(Sent(), ElementsAre("node-0 stop 1", "node-1 stop 1"));
  logs_.Lines("node-0", {1, {{0, 0, "a"}}, true});
  EXPECT_TRUE(reader_->lines.empty());
}

TEST_F(LogStreamsTest, ASlowReaderIsToldThatLinesWereLost) {
  Open({"job", {}, 100, false});
  Sent();
  logs_.Lines("node-0", {1, {{0, 0, "1"}, {0, 0, "2"}, {0, 0, "3"}, {0, 0, "4"}}, false});
  ASSERT_TRUE(reader_->end.has_value());
  EXPECT_THAT(*reader_->end, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Sent(), ElementsAre("node-0 stop 1", "node-1 stop 1"));
}

TEST_F(LogStreamsTest, WrongRanksAndUnknownJobsAreRefused) {
  Open({"job", {2}, 100, false});
  ASSERT_TRUE(reader_->end.has_value());
  EXPECT_EQ(ReasonOf(*reader_->end), kInvalidField);
  Open({"other", {}, 100, false});
  EXPECT_EQ(ReasonOf(*reader_->end), kJobNotFound);
}

}  // namespace
}  // namespace fedshard::service
