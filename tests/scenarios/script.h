// Runs a scenario script against a core on virtual time. A script is a text file:
//
//   # What the scenario proves (its first lines).
//   > command arguments      one or several core commands
//     output                 what followed; written by the runner, compared by the test
//
// Commands (key=value arguments; "quotes" around values with spaces; ranks=0-3,5 or all; groups
// likewise):
//   options key=value ...            before anything else; names as in CoreOptions
//   register NODE [incarnation=i1] [slots=4] [topology=b/r/h]
//   heartbeat NODE|all [incarnation=] | disconnect NODE [incarnation=]
//   submit JOB mesh=FxRxS [steps=] [every=] [samples=] [length=] [equal] [evaluates]
//   [evaluate_every=] [request=]
//     [validate_only] [blob=]
//   cancel JOB [request=] [reason=]
//   vote JOB round= ranks= [attempt=] [hash=] [seconds=] [bytes=]  | ready JOB round= groups=
//   [steps=] [tokens=]
//     [first=] [last=] [seconds=]
//   evaluation JOB round= groups= [loss_sum=] [tokens=] | summary JOB [rank=]
//   failure JOB ranks= reason= message= | exit JOB ranks= [code=] [signal=] [reason=] [message=]
//   [log=line|line] (reports also take node=, incarnation= and generation= in place of the true
//   ones) tick | wait 1.5s [heartbeats]    the latter lets due timers fire, with heartbeats of all
//   nodes every 2 s if asked show                             jobs and nodes
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/core.h"
#include "tests/scenarios/arguments.h"

namespace fedshard::core {

class Script {
 public:
  Script();

  // Runs the whole text and returns it with the outputs replaced by what happened. INVALID_ARGUMENT
  // with the line when the script cannot be understood.
  absl::StatusOr<std::string> Run(const std::string& text);

  // After Run: everything that was applied, and the records it left.
  const std::vector<std::pair<Command, Instant>>& log() const { return log_; }
  const std::vector<Record>& records() const { return records_; }
  const Core& core() const { return *core_; }
  const CoreOptions& options() const { return options_; }

 private:
  absl::Status RunLine(const std::string& line);
  absl::Status SetOptions(const Arguments& arguments);
  absl::Status Wait(const std::string& duration, bool heartbeats);
  absl::Status Submit(const std::string& job, Arguments arguments);
  void Heartbeat(const std::string& node, const Arguments& arguments);

  void Apply(const Command& command);
  void AdvanceTo(int64_t steady_us);
  // Flushes the lines, the records' names and a changed timer as output.
  void EndLine(std::string& out);

  CoreOptions options_;
  std::unique_ptr<Core> core_;
  Instant now_;
  uint64_t next_reply_ = 1;
  std::vector<std::pair<Command, Instant>> log_;
  std::vector<Record> records_;
  std::vector<std::string> lines_;       // Of the running script line.
  std::map<std::string, int> recorded_;  // Likewise, by name.
  std::optional<int64_t> wake_, shown_wake_;
};

}  // namespace fedshard::core
