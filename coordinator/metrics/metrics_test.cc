// Proves the metrics page: promtool accepts a captured page, each family is there once, series
// follow the state and vanish when they should; and that the HTTP pages answer, also when the
// service does not.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "common/testing/temp_dir.h"
#include "coordinator/metrics/http_server.h"
#include "coordinator/metrics/render.h"
#include "coordinator/metrics/snapshot.h"
#include "coordinator/service/service.h"
#include "coordinator/storage/memory_journal.h"

namespace fedshard::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000;

// One active and one lost node; "run" trains, "old" ended at 100 s.
class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() {
    core::Node& node = state_.nodes["node-0"];
    node.id = "node-0";
    node.slots = {"run", "", ""};
    node.last_heartbeat_us = 198 * kSecond;
    core::Node& lost = state_.nodes["node-1"];
    lost.id = "node-1";
    lost.state = core::NodeState::kLost;
    lost.slots = {"", ""};
    lost.last_heartbeat_us = 150 * kSecond;
    core::Job& run = state_.jobs["run"];
    run.spec.id = "run";
    run.spec.mesh = {1, 1, 1};
    run.spec.total_steps = 10;
    run.spec.samples_per_step = 1;
    run.spec.tokens_per_sample = 64;
    run.state = core::JobState::kRunning;
    run.rounds_committed = 3;
    run.rounds_aborted = 1;
    run.committed_tokens = 640;
    run.result.bytes = {11, 22, 33};
    core::Group group;
    group.generation = 1;
    group.ranks.push_back({{0, "node-0", 0}, core::RankState::kRunning});
    run.groups.push_back(group);
    service::StepReport report;
    report.from = {"node-0", "w1", "run", 1, 0};
    report.steps.push_back({7, 64, 2.5, 1.25, 0.001, 0.3});
    telemetry_.Report(state_, report, 199 * kSecond);
    core::Job& old = state_.jobs["old"];
    old.spec = run.spec;
    old.spec.id = "old";
    old.state = core::JobState::kFailed;
    old.ended.steady_us = 100 * kSecond;
  }

  std::string PageAt(int64_t seconds) {
    const service::View view{state_, telemetry_, {seconds * kSecond, seconds * kSecond}};
    return Render(TakeSnapshot(view, {0, 5 * kSecond}, 300 * kSecond));
  }

  core::State state_;
  service::Telemetry telemetry_{{}};
};

TEST_F(MetricsTest, PromtoolAcceptsThePageAndEachFamilyIsThereOnce) {
  const std::string page = PageAt(200);
  std::set<std::string> families;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) != 0) continue;
    EXPECT_TRUE(families.insert(line).second) << line;
  }
  EXPECT_EQ(families.size(), 19u);
  const testing::TempDir directory;
  const std::string path = directory.path() + "/page";
  std::ofstream(path) << page;
  EXPECT_EQ(std::system(("promtool check metrics < " + path + " 1>&2").c_str()), 0) << page;
}

TEST_F(MetricsTest, SeriesSayWhatTheStateSays) {
  const std::string page = PageAt(200);
  for (const char* line :
       {"fedshard_nodes{state=\"active\"} 1\n",
        "fedshard_nodes{state=\"lost\"} 1\n",
        "fedshard_slots{state=\"used\"} 1\n",
        "fedshard_slots{state=\"free\"} 2\n",
        "fedshard_jobs{state=\"running\"} 1\n",
        "fedshard_jobs{state=\"queued\"} 0\n",
        "fedshard_node_up{node=\"node-0\"} 1\n",
        "fedshard_node_up{node=\"node-1\"} 0\n",
        "fedshard_node_heartbeat_age_seconds{node=\"node-0\"} 2\n",
        "fedshard_job_steps_total{train_job=\"run\"} 7\n",
        "fedshard_job_committed_tokens_total{train_job=\"run\"} 640\n",
        "fedshard_job_rounds_total{train_job=\"run\",result=\"committed\"} 3\n",
        "fedshard_job_rounds_total{train_job=\"run\",result=\"aborted\"} 1\n",
        "fedshard_job_sent_bytes_total{train_job=\"run\",tier=\"federation\"} 33\n",
        "fedshard_job_loss_nats{train_job=\"run\",group=\"0\"} 2.5\n",
        "fedshard_job_gradient_norm{train_job=\"run\",group=\"0\"} 1.25\n",
        "fedshard_job_learning_rate{train_job=\"run\"} 0.001\n",
        "fedshard_step_duration_seconds_bucket{le=\"0.25\"} 0\n",
        "fedshard_step_duration_seconds_bucket{le=\"0.5\"} 1\n",
        "fedshard_step_duration_seconds_count 1\n",
        "fedshard_coordinator_start_time_seconds 5\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  // Not evaluated yet: absent, not 0.
  EXPECT_THAT(page, Not(HasSubstr("fedshard_job_validation_loss_nats{")));
  EXPECT_THAT(page, Not(HasSubstr("{job=")));
}

TEST_F(MetricsTest, WhatHasDepartedVanishesButIsStillCounted) {
  EXPECT_THAT(PageAt(399), HasSubstr("train_job=\"old\""));
  const std::string later = PageAt(500);
  EXPECT_THAT(later, Not(HasSubstr("train_job=\"old\"")));
  EXPECT_THAT(later, HasSubstr("fedshard_jobs{state=\"failed\"} 1\n"));
  EXPECT_THAT(later, Not(HasSubstr("node=\"node-1\"")));
  EXPECT_THAT(later, HasSubstr("fedshard_nodes{state=\"lost\"} 1\n"));
  EXPECT_THAT(later, HasSubstr("node=\"node-0\""));
}

// The whole response to a GET, or "" when there is none.
std::string Get(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval timeout{30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  std::string response;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof buffer)) > 0;) response.append(buffer, n);
  }
  close(fd);
  return response;
}

TEST(HttpServerTest, ServesItsPages) {
  const SystemClock clock;
  service::Service service({}, &clock, std::make_unique<storage::MemoryJournal>());
  service.Start();
  HttpServer server({}, &service);
  ASSERT_TRUE(server.Start().ok());
  EXPECT_THAT(Get(server.address(), "/metrics"),
              ::testing::AllOf(HasSubstr("200 OK"), HasSubstr("version=0.0.4"),
                               HasSubstr("fedshard_build_info{version=")));
  EXPECT_THAT(Get(server.address(), "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get(server.address(), "/readyz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get(server.address(), "/"), HasSubstr("fedshard coordinator"));
  EXPECT_THAT(Get(server.address(), "/metrics/more"), HasSubstr("404 Not Found"));
  EXPECT_THAT(Get(server.address(), "/nothing"), HasSubstr("404 Not Found"));

  HttpServerOptions same_port;
  same_port.listen = server.address();
  HttpServer second(same_port, &service);
  EXPECT_EQ(second.Start().code(), absl::StatusCode::kUnavailable);

  service.Stop();
  EXPECT_THAT(Get(server.address(), "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get(server.address(), "/readyz"), HasSubstr("503"));
  EXPECT_THAT(Get(server.address(), "/metrics"), HasSubstr("503"));
}

TEST(HttpServerTest, AScrapeOfAStuckServiceEnds) {
  const SystemClock clock;
  service::Service service({}, &clock, std::make_unique<storage::MemoryJournal>());
  // Never started: queries wait for ever.
  HttpServerOptions options;
  options.snapshot_timeout = std::chrono::milliseconds(50);
  HttpServer server(options, &service);
  ASSERT_TRUE(server.Start().ok());
  EXPECT_THAT(Get(server.address(), "/metrics"), HasSubstr("503"));
}

}  // namespace
}  // namespace fedshard::metrics
