// Commands that talk to a running coordinator.
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "cli/job_file.h"
#include "cli/quantity.h"
#include "cli/summary.h"
#include "cli/text.h"
#include "common/spec/validate.h"

namespace fedshard::cli {
namespace {

int Fail(const Outcome& outcome) {
  std::cerr << "fedshard: " << outcome.error << "\n";
  return outcome.exit_code;
}

int FailWith(const absl::Status& status) {
  std::cerr << status.message() << "\n";
  return absl::IsNotFound(status) || absl::IsInvalidArgument(status) || absl::IsDataLoss(status)
             ? kExitUsage
             : kExitFailed;
}

// Of a job that ended.
int ExitCodeOf(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_COMPLETED ? kExitDone : kExitFailed;
}

// Shows the job until it ends; its last state in `last`.
int Follow(Client& client, const std::string& id, bool show, v1::Job& last) {
  const Outcome outcome = FollowJob(client, id, show, last);
  if (!outcome.ok()) return Fail(outcome);
  if (last.state() == v1::JOB_STATE_FAILED)
    std::cerr << last.reason() << ": " << last.message() << "\n";
  return ExitCodeOf(last);
}

}  // namespace

int RunSubmit(const GlobalOptions& global, const SubmitOptions& options) {
  const auto spec = ReadJobFile(options.file);
  if (!spec.ok()) return FailWith(spec.status());
  Client client(global.coordinator);
  v1::Job job;
  const Outcome outcome = client.Submit(*spec, options.dry_run, job);
  if (!outcome.ok()) return Fail(outcome);
  const bool follow = !options.dry_run && (options.wait || options.watch);
  if (options.format == Format::kTable) {
    std::cout << job.name() << (options.dry_run ? " is valid" : " submitted") << "\n";
    if (options.dry_run) {
      if (!job.message().empty()) std::cerr << job.message() << "\n";
    } else if (!follow) {
      std::cerr << "Next: fedshard watch " << LastPart(job.name()) << "\n";
    }
  } else if (!follow) {  // Else one object only: the job as it ended.
    std::cout << Show({job}, options.format, /*single=*/true);
  }
  if (!follow) return kExitDone;
  const std::string name = job.name();
  const int exit_code = Follow(client, name, options.watch, job);
  // With the result; also of a job that failed, but not of one that nobody saw end.
  if (HasEnded(job.state())) {
    std::cout << (options.format == Format::kTable ? SummaryText(job)
                                                   : Show({job}, options.format, /*single=*/true));
  }
  return exit_code;
}

int RunValidate(const std::string& file) {
  const auto spec = ReadJobFile(file);
  if (!spec.ok()) return FailWith(spec.status());
  if (const absl::Status data = CheckData(*spec); !data.ok()) return FailWith(data);
  std::cout << file << ": valid. " << spec->id() << ": " << MeshText(spec->mesh()) << " = "
            << WorldSize(*spec) << " ranks, " << spec->training().steps() << " steps of "
            << TokensPerStep(*spec) << " tokens, a round every " << spec->federation().every_steps()
            << " steps, " << ShortCount(static_cast<double>(TotalTokens(*spec)))
            << " tokens in all\n";
  return kExitDone;
}

int RunGet(const GlobalOptions& global, const std::string& what, const std::string& name,
           Format format) {
  Client client(global.coordinator);
  Outcome outcome;
  std::string text;
  if (what == "jobs" && !name.empty()) {
    v1::Job job;
    outcome = client.GetJob(name, job);
    if (outcome.ok()) text = Show({job}, format, /*single=*/true);
  } else if (what == "jobs") {
    std::vector<v1::Job> jobs;
    outcome = client.ListJobs(jobs);
    text = Show(jobs, format);
  } else if (what == "nodes") {
    std::vector<v1::Node> nodes;
    outcome = client.ListNodes(nodes);
    if (!name.empty()) {
      std::erase_if(nodes,
                    [&](const v1::Node& node) { return LastPart(node.name()) != LastPart(name); });
      if (outcome.ok() && nodes.empty()) outcome = {kExitNotFound, absl::StrCat("no node ", name)};
    }
    text = Show(nodes, format);
  } else if (name.empty()) {
    return Fail({kExitUsage, absl::StrCat("get ", what, " needs the name of a job")});
  } else if (what == "groups") {
    std::vector<v1::Group> groups;
    outcome = client.ListGroups(name, groups);
    text = Show(groups, format);
  } else {
    std::vector<v1::Round> rounds;
    outcome = client.ListRounds(name, rounds);
    text = Show(rounds, format);
  }
  if (!outcome.ok()) return Fail(outcome);
  std::cout << text;
  return kExitDone;
}

int RunDescribeJob(const GlobalOptions& global, const std::string& id) {
  Client client(global.coordinator);
  v1::Job job;
  std::vector<v1::Group> groups;
  std::vector<v1::Round> rounds;
  Outcome outcome = client.GetJob(id, job);
  if (outcome.ok()) outcome = client.ListGroups(id, groups);
  if (outcome.ok()) outcome = client.ListRounds(id, rounds);
  if (!outcome.ok()) return Fail(outcome);
  std::cout << Describe(job, groups, rounds);
  return kExitDone;
}

int RunWatch(const GlobalOptions& global, const std::string& job) {
  Client client(global.coordinator);
  v1::Job last;
  return Follow(client, job, /*show=*/true, last);
}

int RunLogs(const GlobalOptions& global, const LogsOptions& options) {
  Client client(global.coordinator);
  v1::GetJobLogsRequest request;
  request.set_name(options.job);
  for (const int rank : options.ranks) request.add_ranks(rank);
  request.set_tail_lines(options.tail);
  request.set_follow(options.follow);
  OnInterrupt([&client] { client.Interrupt(); });
  const bool one = options.ranks.size() == 1;
  const Outcome outcome = client.Logs(request, [&](const v1::GetJobLogsResponse& response) {
    const std::string prefix = one ? "" : absl::StrCat("rank ", response.rank(), " | ");
    printf("%s%s %s\n", prefix.c_str(), TimeText(response.time()).c_str(), response.line().c_str());
    fflush(stdout);
  });
  OnInterrupt(nullptr);
  return outcome.ok() ? kExitDone : Fail(outcome);
}

int RunCancel(const GlobalOptions& global, const std::string& id, const std::string& reason) {
  Client client(global.coordinator);
  v1::Job job;
  const Outcome outcome = client.CancelJob(id, reason, job);
  if (!outcome.ok()) return Fail(outcome);
  std::cout << job.name() << " " << StateName(job.state()) << "\n";
  return kExitDone;
}

}  // namespace fedshard::cli
