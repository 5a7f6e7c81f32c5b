#include "tests/scenarios/reports.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace fedshard::core {
namespace {

// Makes the command of one sender.
using Maker = std::function<Command(const RankId&)>;

Maker Ready(const Job* job, Taker& take) {
  GroupReady ready;
  int64_t assigned = 0, tokens_per_step = 0;
  if (job != nullptr) {
    tokens_per_step = job->spec.samples_per_step * job->spec.tokens_per_sample;
    if (!job->rounds.empty()) assigned = job->rounds.back().participants[0].assignment.steps;
  }
  ready.round = take.Int("round");
  ready.steps = take.Int("steps", assigned);
  ready.tokens = take.Int("tokens", ready.steps * tokens_per_step);
  ready.first_loss = take.Real("first", 4);
  ready.last_loss = take.Real("last", 3);
  ready.step_seconds = take.Real("seconds", 1);
  ready.skipped_steps = take.Int("skipped", 0);
  return [ready](const RankId& from) mutable {
    ready.from = from;
    return ready;
  };
}

// By default ranks of one shard have the same hash, and each round and shard another one.
Maker VoteOf(const Mesh& mesh, Taker& take) {
  RankVote vote;
  vote.round = take.Int("round");
  vote.attempt = static_cast<int32_t>(take.Int("attempt", vote.round == 0 ? 0 : 1));
  const int64_t bytes = take.Int("bytes");
  vote.bytes = {bytes, bytes, bytes};
  vote.averaging_seconds = take.Real("seconds");
  const int64_t hash = take.Int("hash", -1);
  if (vote.round == 0) {
    vote.parameters = 1000;
    vote.padded_parameters = 1024;
  }
  return [vote, mesh, hash](const RankId& from) mutable {
    vote.from = from;
    vote.shard_hash = hash >= 0 ? hash : 256 * vote.round + mesh.CoordinatesOf(from.rank).shard;
    return vote;
  };
}

Maker Exit(Taker& take) {
  RankExited exited;
  exited.exit_code = static_cast<int32_t>(take.Int("code"));
  exited.signal = static_cast<int32_t>(take.Int("signal"));
  exited.reason = take.Text("reason");
  exited.message = take.Text("message");
  if (take.Has("log")) exited.log_tail = absl::StrSplit(take.Text("log"), '|');
  return [exited](const RankId& from) mutable {
    exited.from = from;
    return exited;
  };
}

absl::StatusOr<Maker> MakerOf(const std::string& verb, const Job* job, Taker& take) {
  if (verb == "ready") return Ready(job, take);
  if (verb == "vote") return VoteOf(job == nullptr ? Mesh{} : job->spec.mesh, take);
  if (verb == "exit") return Exit(take);
  if (verb == "summary") {
    return Maker([](const RankId& from) { return JobSummary{from, "abcd", {1, 2}}; });
  }
  if (verb == "evaluation") {
    const int64_t round = take.Int("round"), tokens = take.Int("tokens", 100);
    const double sum = take.Real("loss_sum", 300);
    return Maker([=](const RankId& from) { return EvaluationReport{from, round, sum, tokens}; });
  }
  if (verb == "checkpoint") {
    const int64_t step = take.Int("step");
    const std::string path = take.Text("path"), error = take.Text("error");
    return Maker(
        [=](const RankId& from) { return CheckpointReport{from, step, path, 100, 0.5, error}; });
  }
  if (verb == "failure") {
    const std::string reason = take.Text("reason"), message = take.Text("message");
    return Maker([=](const RankId& from) { return RankFailure{from, reason, message}; });
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown command ", verb));
}

// What is not given in `said` is filled in with the truth.
RankId SenderOf(const State& state, const Job* job, RankId said) {
  if (job != nullptr && !job->groups.empty() && said.rank < job->spec.mesh.world_size()) {
    const int32_t size = job->spec.mesh.group_size();
    const Group& group = job->groups[said.rank / size];
    if (said.node.empty()) said.node = group.ranks[said.rank % size].placement.node;
    if (said.generation == 0) said.generation = group.generation;
  }
  auto node = state.nodes.find(said.node);
  if (said.incarnation.empty() && node != state.nodes.end()) {
    said.incarnation = node->second.incarnation;
  }
  return said;
}

}  // namespace

absl::StatusOr<std::vector<Command>> BuildReports(const State& state, const std::string& verb,
                                                  const JobId& id, Arguments arguments) {
  Taker take(arguments);
  auto it = state.jobs.find(id);
  const Job* job = it == state.jobs.end() ? nullptr : &it->second;
  const Mesh mesh = job == nullptr ? Mesh{} : job->spec.mesh;
  std::vector<int32_t> ranks;
  if (verb == "ready" || verb == "evaluation") {
    ASSIGN_OR_RETURN(ranks, ParseList(take.Text("groups", "all"), mesh.groups));
    for (int32_t& rank : ranks) rank *= mesh.group_size();
  } else {
    const bool spokesman = verb == "summary" || verb == "checkpoint";
    const std::string otherwise = spokesman ? "0" : "all";
    ASSIGN_OR_RETURN(ranks, ParseList(take.Text("ranks", otherwise), mesh.world_size()));
  }
  RankId said;
  said.node = take.Text("node");
  said.incarnation = take.Text("incarnation");
  said.job = id;
  said.generation = static_cast<Generation>(take.Int("generation"));
  ASSIGN_OR_RETURN(const Maker make, MakerOf(verb, job, take));
  RETURN_IF_ERROR(take.Done());
  std::vector<Command> commands;
  for (int32_t rank : ranks) {
    said.rank = rank;
    commands.push_back(make(SenderOf(state, job, said)));
  }
  return commands;
}

}  // namespace fedshard::core
