// A cluster of workers and trainers on virtual time around one core, driven by a seed: messages
// wait in per-node queues and anything may happen between two of them. For tests of what must hold
// under every order of events.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"

namespace fedshard::core {

// A generator of our own: the same numbers from the same seed everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  // Of [0, bound).
  uint32_t Below(uint32_t bound);
  bool OneIn(uint32_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

class SimulatedCluster {
 public:
  // Called after every applied command.
  using Observer = std::function<void(const Command&, const Effects&)>;

  SimulatedCluster(uint64_t seed, const CoreOptions& options, Observer observer);

  // All workers register. Comes first.
  void Start();
  // One thing happens: a message is delivered or processed, time passes, or something breaks.
  void Step(bool with_faults);
  // Delivers everything and lets time pass, without further faults, until nothing moves.
  void Settle();

  const Core& core() const { return core_; }
  const std::vector<std::pair<Command, Instant>>& log() const { return log_; }

 private:
  // A living trainer.
  using RankKey = std::tuple<JobId, Generation, int32_t>;
  struct Worker {
    NodeId id;
    int32_t slots = 0;
    int32_t lives = 1;
    bool connected = true;
    int64_t silent_until_us = 0;
    std::deque<Directive> inbox;
    std::deque<Command> outbox;
    std::map<RankKey, JobSpec> ranks;

    std::string incarnation() const { return "life-" + std::to_string(lives); }
  };

  void Apply(const Command& command);
  void PassTime(int64_t us);
  void Process(Worker& worker);
  void Handle(Worker& worker, const StartRanks& start);
  void Handle(Worker& worker, const StopRanks& stop);
  void Handle(Worker& worker, const DirectRanks& direct);
  void Obey(Worker& worker, const RankId& from, const JobSpec& spec, const RoundPlan& plan);
  void Obey(Worker& worker, const RankId& from, const JobSpec& spec, const RoundDecision& decision);
  void Exit(Worker& worker, RankKey rank, int32_t code, int32_t signal, const std::string& reason);
  void Vote(Worker& worker, const RankId& from, const JobSpec& spec, int64_t round,
            int32_t attempt);

  void Submit();
  void Cancel();
  void Break(Worker& worker);
  void Register(Worker& worker);
  Worker& AnyWorker() { return workers_[random_.Below(static_cast<uint32_t>(workers_.size()))]; }
  RankId From(const Worker& worker, const RankKey& rank) const;

  Random random_;
  Core core_;
  Observer observer_;
  std::vector<Worker> workers_;
  Instant now_{0, 1'700'000'000'000'000};
  std::optional<int64_t> wake_;
  int next_job_ = 0;
  bool faults_ = false;  // Of the running step.
  std::vector<std::pair<Command, Instant>> log_;
};

}  // namespace fedshard::core
