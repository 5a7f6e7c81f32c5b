#include "coordinator/core/simulated_cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fedshard::core {

uint32_t Random::Below(uint32_t bound) {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>((state_ >> 33) % bound);
}

SimulatedCluster::SimulatedCluster(uint64_t seed, const CoreOptions& options, Observer observer)
    : random_(seed), core_(options), observer_(std::move(observer)) {
  const uint32_t count = 1 + random_.Below(4);
  for (uint32_t i = 0; i < count; ++i) {
    Worker worker;
    worker.id = absl::StrCat("node-", i);
    worker.slots = static_cast<int32_t>(1 + random_.Below(4));
    workers_.push_back(std::move(worker));
  }
}

void SimulatedCluster::Start() {
  for (Worker& worker : workers_) Register(worker);
}

void SimulatedCluster::Apply(const Command& command) {
  log_.emplace_back(command, now_);
  const Effects effects = core_.Apply(command, now_);
  wake_ = effects.wake_at_us;
  for (const Directive& directive : effects.directives) {
    for (Worker& worker : workers_) {
      // As the service does: what is for a former incarnation is dropped.
      if (worker.id == directive.node && worker.incarnation() == directive.incarnation) {
        worker.inbox.push_back(directive);
      }
    }
  }
  observer_(command, effects);
}

void SimulatedCluster::PassTime(int64_t us) {
  const int64_t end = now_.steady_us + us;
  while (wake_ && *wake_ <= end && random_.Below(4) != 0) {
    const int64_t at = std::max(now_.steady_us, *wake_);
    now_ = {at, now_.wall_us + at - now_.steady_us};
    Apply(Tick{});
  }
  now_ = {end, now_.wall_us + end - now_.steady_us};
  for (Worker& worker : workers_) {
    if (worker.connected && worker.silent_until_us <= now_.steady_us) {
      Apply(NodeHeartbeat{worker.id, worker.incarnation()});
    }
  }
}

void SimulatedCluster::Step(bool with_faults) {
  faults_ = with_faults;
  Worker& worker = AnyWorker();
  const uint32_t dice = random_.Below(100);
  if (dice < 45) {
    if (!worker.inbox.empty() && worker.connected) Process(worker);
  } else if (dice < 85) {
    if (worker.outbox.empty() || !worker.connected) return;
    const Command command = worker.outbox.front();
    // Sometimes a message comes twice.
    if (!(with_faults && random_.OneIn(20))) worker.outbox.pop_front();
    Apply(command);
  } else if (dice < 92) {
    PassTime(random_.Below(3'000'000));
  } else if (dice < 96) {
    if (next_job_ < 6) Submit();
  } else if (with_faults && dice < 97) {
    Cancel();
  } else if (with_faults && random_.OneIn(3)) {
    Break(worker);
  }
}

void SimulatedCluster::Settle() {
  faults_ = false;
  for (Worker& worker : workers_) {
    worker.silent_until_us = 0;
    if (!worker.connected) Register(worker);
  }
  for (int quiet = 0; quiet < 4;) {
    bool moved = false;
    for (Worker& worker : workers_) {
      for (; !worker.inbox.empty(); moved = true) Process(worker);
      for (; !worker.outbox.empty(); moved = true) {
        const Command command = worker.outbox.front();
        worker.outbox.pop_front();
        Apply(command);
      }
    }
    PassTime(2'000'000);
    if (wake_ && *wake_ <= now_.steady_us) Apply(Tick{});
    quiet = moved ? 0 : quiet + 1;
  }
}

void SimulatedCluster::Register(Worker& worker) {
  worker.connected = true;
  Apply(RegisterNode{worker.id,
                     worker.incarnation(),
                     worker.slots,
                     {{"topology", absl::StrCat("b/r", worker.id.size() % 2, "/", worker.id)}},
                     "127.0.0.1",
                     "test"});
}

void SimulatedCluster::Submit() {
  SubmitJob command;
  command.request_id = absl::StrCat("r", random_.Below(8));
  JobSpec& spec = command.spec;
  spec.id = absl::StrCat("job-", next_job_++);
  spec.mesh = {static_cast<int32_t>(1 + random_.Below(3)),
               static_cast<int32_t>(1 + random_.Below(2)),
               static_cast<int32_t>(1 + random_.Below(3))};
  spec.averages = spec.mesh.groups > 1;
  spec.total_steps = 1 + random_.Below(7);
  spec.steps_per_round = 1 + random_.Below(3);
  spec.samples_per_step = spec.mesh.group_size();
  spec.tokens_per_sample = 16;
  spec.evaluates = random_.OneIn(2);
  spec.evaluate_every_rounds = random_.Below(3);
  spec.checkpoints = random_.OneIn(2);
  spec.checkpoint_every_rounds = random_.Below(3);
  if (random_.OneIn(4)) {
    spec.first_step = random_.Below(static_cast<uint32_t>(spec.total_steps));
    spec.first_sample = spec.first_step * spec.samples_per_step * spec.mesh.groups;
    spec.first_tokens = spec.first_sample * spec.tokens_per_sample;
  }
  Apply(command);
}

void SimulatedCluster::Cancel() {
  if (next_job_ == 0) return;
  CancelJob command;
  command.job = absl::StrCat("job-", random_.Below(static_cast<uint32_t>(next_job_) + 1));
  Apply(command);
}

void SimulatedCluster::Break(Worker& worker) {
  switch (random_.Below(5)) {
    case 0:  // A trainer dies.
      if (!worker.ranks.empty()) Exit(worker, worker.ranks.begin()->first, 0, 9, "");
      break;
    case 1:  // A trainer gives up.
      if (!worker.ranks.empty()) {
        const RankKey rank = worker.ranks.rbegin()->first;
        const char* reason = random_.OneIn(2) ? "COLLECTIVE_FAILED" : "NON_FINITE_LOSS";
        worker.outbox.push_back(RankFailure{From(worker, rank), reason, "simulated"});
        Exit(worker, rank, 3, 0, "");
      }
      break;
    case 2:  // The worker restarts: its trainers, queues and incarnation are gone.
      ++worker.lives;
      worker.ranks.clear();
      worker.inbox.clear();
      worker.outbox.clear();
      Register(worker);
      break;
    case 3:  // The stream ends, or comes back.
      if (worker.connected) {
        worker.connected = false;
        Apply(NodeDisconnected{worker.id, worker.incarnation()});
      } else {
        Register(worker);
      }
      break;
    case 4:  // Nothing is heard for a while.
      worker.silent_until_us = now_.steady_us + 15'000'000;
      break;
  }
}

RankId SimulatedCluster::From(const Worker& worker, const RankKey& rank) const {
  return {worker.id, worker.incarnation(), std::get<0>(rank), std::get<1>(rank), std::get<2>(rank)};
}

void SimulatedCluster::Process(Worker& worker) {
  const Directive directive = worker.inbox.front();
  worker.inbox.pop_front();
  std::visit([&](const auto& body) { Handle(worker, body); }, directive.body);
}

void SimulatedCluster::Handle(Worker& worker, const StartRanks& start) {
  const JobSpec spec = core_.state().jobs.at(start.job).spec;
  for (const RankPlacement& placement : start.ranks) {
    const RankKey rank{start.job, start.generation, placement.rank};
    worker.ranks[rank] = spec;
    Vote(worker, From(worker, rank), spec, 0, 0);
  }
}

void SimulatedCluster::Handle(Worker& worker, const StopRanks& stop) {
  std::vector<RankKey> stopped;
  for (const auto& [rank, spec] : worker.ranks) {
    if (std::get<1>(rank) == stop.generation) stopped.push_back(rank);
  }
  for (const RankKey& rank : stopped) Exit(worker, rank, 5, 0, "STOPPED");
}

void SimulatedCluster::Handle(Worker& worker, const DirectRanks& direct) {
  const std::map<RankKey, JobSpec> ranks = worker.ranks;
  for (const auto& [rank, spec] : ranks) {
    if (std::get<1>(rank) != direct.generation) continue;
    const RankId from = From(worker, rank);
    std::visit([&](const auto& body) { Obey(worker, from, spec, body); }, direct.directive);
  }
}

void SimulatedCluster::Obey(Worker& worker, const RankId& from, const JobSpec& spec,
                            const RoundPlan& plan) {
  Vote(worker, from, spec, plan.round, plan.attempt);
}

void SimulatedCluster::Obey(Worker& worker, const RankId& from, const JobSpec& spec,
                            const RoundDecision& decision) {
  if (!decision.commit) return;
  const bool first = from.rank % spec.mesh.group_size() == 0;
  if (decision.evaluate && first) {
    worker.outbox.push_back(EvaluationReport{from, decision.round, 30.0, 10});
  }
  if (decision.checkpoint && from.rank == 0) {
    const std::string error = faults_ && random_.OneIn(4) ? "disk full" : "";
    worker.outbox.push_back(
        CheckpointReport{from, decision.checkpoint->step, "/checkpoints/one", 100, 0.1, error});
  }
  if (decision.finish) {
    if (from.rank == 0) worker.outbox.push_back(JobSummary{from, "hash", {}});
    Exit(worker, {from.job, from.generation, from.rank}, 0, 0, "");
  } else if (first) {
    const int64_t steps = decision.next->steps;
    worker.outbox.push_back(GroupReady{from, decision.next->round, steps,
                                       steps * spec.samples_per_step * spec.tokens_per_sample, 4.0,
                                       3.0, 1.0});
  }
}

void SimulatedCluster::Vote(Worker& worker, const RankId& from, const JobSpec& spec, int64_t round,
                            int32_t attempt) {
  RankVote vote;
  vote.from = from;
  vote.round = round;
  vote.attempt = attempt;
  vote.shard_hash = 100 * round + spec.mesh.CoordinatesOf(from.rank).shard;
  if (faults_ && random_.OneIn(200)) vote.shard_hash = 7;
  vote.bytes = {1, 2, 3};
  worker.outbox.push_back(vote);
}

void SimulatedCluster::Exit(Worker& worker, RankKey rank, int32_t code, int32_t signal,
                            const std::string& reason) {
  worker.ranks.erase(rank);
  RankExited exited;
  exited.from = From(worker, rank);
  exited.exit_code = code;
  exited.signal = signal;
  exited.reason = reason;
  worker.outbox.push_back(exited);
}

}  // namespace fedshard::core
