// Under hundreds of random schedules with faults, after every single command: a slot holds at most
// one rank and is booked for it; a job that has ended stays as it is; leases are disjoint and leave
// no gap; a round is decided once; a command that leaves no record has changed nothing durable. At
// the end, with faults gone, every job has ended or waits for slots that are not there; the log
// applied again gives the same effects and state, and so do the records alone. The seed of a
// failure is in its trace; FEDSHARD_SEEDS=N tries more of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/core/record.h"
#include "coordinator/core/simulated_cluster.h"

namespace fedshard::core {
namespace {

// The first line that differs, or "": whole states are too long to print.
std::string FirstDifference(const std::string& a, const std::string& b) {
  if (a == b) return "";
  const std::vector<std::string> left = absl::StrSplit(a, '\n'), right = absl::StrSplit(b, '\n');
  size_t i = 0;
  while (i < left.size() && i < right.size() && left[i] == right[i]) ++i;
  return absl::StrCat(i < left.size() ? left[i] : "(end)", "  <->  ",
                      i < right.size() ? right[i] : "(end)");
}

class Invariants {
 public:
  void Check(const Core& core, const Effects& effects) {
    CheckSlots(core.state());
    CheckEnds(core.state());
    for (const Directive& directive : effects.directives) {
      const auto* direct = std::get_if<DirectRanks>(&directive.body);
      if (direct == nullptr) continue;
      if (const auto* decision = std::get_if<RoundDecision>(&direct->directive)) {
        CheckDecision(core.state().jobs.at(direct->job), *direct, *decision);
      }
    }
    const std::string text = Serialize(core.state());
    if (effects.records.empty()) {
      ASSERT_EQ(FirstDifference(text, last_text_), "") << "changed without a record";
    }
    last_text_ = text;
    for (const Record& record : effects.records) records.push_back(record);
  }

  std::vector<Record> records;
  int committed = 0;

 private:
  void CheckSlots(const State& state) {
    std::set<std::pair<NodeId, int32_t>> taken;
    for (const auto& [id, job] : state.jobs) {
      bool all_exited = true;
      for (const Group& group : job.groups) {
        for (const Rank& rank : group.ranks) {
          if (rank.state == RankState::kExited) continue;
          all_exited = false;
          const RankPlacement& at = rank.placement;
          ASSERT_TRUE(taken.insert({at.node, at.slot}).second) << "two ranks on one slot";
          ASSERT_EQ(state.nodes.at(at.node).slots.at(at.slot), id);
        }
      }
      ASSERT_EQ(state.active.count(id) == 0, all_exited) << id;
      const bool queued = std::count(state.queue.begin(), state.queue.end(), id) == 1;
      ASSERT_EQ(queued, job.state == JobState::kQueued) << id;
    }
  }

  void CheckEnds(const State& state) {
    for (const auto& [id, job] : state.jobs) {
      ASSERT_LE(job.committed_steps, job.spec.total_steps);
      if (job.state == JobState::kCompleted) {
        ASSERT_EQ(job.committed_steps, job.spec.total_steps);
      }
      if (!IsTerminal(job.state)) continue;
      const auto end = std::make_tuple(job.state, job.reason, job.message, job.committed_tokens);
      const auto known = ends_.emplace(id, end);
      ASSERT_EQ(known.first->second, end) << id << " changed after its end";
    }
  }

  void CheckDecision(const Job& job, const DirectRanks& direct, const RoundDecision& decision) {
    // One decision for each round, the same for all its groups.
    const auto key = std::make_pair(job.spec.id, decision.round);
    ASSERT_EQ(decisions_.emplace(key, decision.commit).first->second, decision.commit);
    if (decision.commit && decision.round > 0) ++committed;
    if (!decision.next) return;
    ASSERT_EQ(decision.next->round, decision.round + 1);
    // Several nodes of a group hear the same; the first of each group is looked at.
    if (!leased_.insert({direct.generation, decision.next->round}).second) return;
    int64_t& next_sample = next_sample_.emplace(job.spec.id, job.spec.first_sample).first->second;
    ASSERT_EQ(decision.next->lease.first_sample, next_sample) << "gap or overlap";
    next_sample += decision.next->lease.sample_count;
    ASSERT_EQ(decision.next->lease.sample_count, decision.next->steps * job.spec.samples_per_step);
  }

  std::map<JobId, std::tuple<JobState, std::string, std::string, int64_t>> ends_;
  std::map<std::pair<JobId, int64_t>, bool> decisions_;
  std::set<std::pair<Generation, int64_t>> leased_;
  std::map<JobId, int64_t> next_sample_;
  std::string last_text_ = Serialize(State{});
};

// The state after the log, and all effects as far as bytes show them.
std::string ApplyAll(const std::vector<std::pair<Command, Instant>>& log,
                     const CoreOptions& options) {
  Core core(options);
  std::string text;
  for (const auto& [command, time] : log) {
    const Effects effects = core.Apply(command, time);
    absl::StrAppend(&text, effects.directives.size(), " ", effects.events.size(), " ",
                    effects.replies.size(), " ", effects.wake_at_us.value_or(-1), "\n");
    for (const Event& event : effects.events) absl::StrAppend(&text, event.message, "\n");
    for (const Record& record : effects.records) text += record.bytes;
  }
  return text + Serialize(core.state());
}

std::string Replay(const std::vector<Record>& records, const CoreOptions& options) {
  Core core(options);
  for (const Record& record : records) {
    const auto decoded = DecodeRecord(record.bytes);
    if (!decoded.ok()) return decoded.status().ToString();
    core.Apply(decoded->command, decoded->time);
  }
  return Serialize(core.state());
}

void ExpectAllEnded(const State& state) {
  int64_t slots = 0;
  for (const auto& [id, node] : state.nodes) {
    slots += static_cast<int64_t>(node.slots.size());
    EXPECT_EQ(node.state, NodeState::kActive);
    for (const JobId& job : node.slots) EXPECT_EQ(job, "") << id;
  }
  for (const auto& [id, job] : state.jobs) {
    if (job.state == JobState::kQueued) {
      EXPECT_GT(job.spec.mesh.world_size(), slots) << id << " could run";
    } else {
      EXPECT_TRUE(IsTerminal(job.state)) << id;
    }
  }
}

TEST(RandomWalk, InvariantsHoldUnderEverySchedule) {
  const char* wanted = std::getenv("FEDSHARD_SEEDS");
  const int seeds = wanted == nullptr ? 300 : std::atoi(wanted);
  std::map<JobState, int> ends;
  std::map<std::string, int> reasons;
  int committed = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    CoreOptions options;
    Invariants invariants;
    const SimulatedCluster* observed = nullptr;
    SimulatedCluster cluster(seed, options, [&](const Command&, const Effects& effects) {
      invariants.Check(observed->core(), effects);
    });
    observed = &cluster;
    cluster.Start();
    const bool with_faults = seed % 5 != 0;
    for (int i = 0; i < 400 && !::testing::Test::HasFatalFailure(); ++i) {
      cluster.Step(with_faults);
    }
    cluster.Settle();
    ExpectAllEnded(cluster.core().state());
    const std::string once = ApplyAll(cluster.log(), options);
    EXPECT_TRUE(once == ApplyAll(cluster.log(), options)) << "not deterministic";
    EXPECT_EQ(
        FirstDifference(Replay(invariants.records, options), Serialize(cluster.core().state())),
        "");
    for (const auto& [id, job] : cluster.core().state().jobs) {
      ++ends[job.state];
      ++reasons[job.reason];
      if (!with_faults && job.state != JobState::kQueued) {
        EXPECT_EQ(job.state, JobState::kCompleted) << job.reason << ": " << job.message;
      }
    }
    committed += invariants.committed;
    if (::testing::Test::HasFailure()) return;
  }
  // The walk went where it should look.
  std::string seen;
  for (const auto& [reason, count] : reasons) absl::StrAppend(&seen, reason, " ", count, "  ");
  RecordProperty("reasons", seen);
  std::printf("%d rounds committed; jobs ended with: %s\n", committed, seen.c_str());
  EXPECT_GT(ends[JobState::kCompleted], seeds / 2);
  EXPECT_GT(ends[JobState::kFailed], seeds / 2);
  EXPECT_GT(ends[JobState::kCanceled], seeds / 10);
  for (const char* reason :
       {"NODE_LOST", "TRAINER_KILLED", "NON_FINITE_LOSS", "COLLECTIVE_FAILED", "HASH_MISMATCH"}) {
    EXPECT_GT(reasons[reason], 0) << reason;
  }
}

}  // namespace
}  // namespace fedshard::core
