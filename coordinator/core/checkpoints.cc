// What becomes of the checkpoints that commits have ordered. The core never waits for one.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/ranks.h"
#include "coordinator/core/rounds.h"

namespace fedshard::core {

void HandleCheckpointReport(Transition& t, const CheckpointReport& command) {
  const Sender sender = Resolve(t, command.from);
  if (sender.job == nullptr) return;
  Job& job = *sender.job;
  // A job that is being stopped may still complete what it began: the file is there either way.
  if (IsTerminal(job.state) || !job.spec.checkpoints || command.from.rank != 0 ||
      command.step > job.committed_steps) {
    return t.Ignore(command.from.job, command.from.node,
                    absl::StrCat("checkpoint of rank ", command.from.rank, " at step ",
                                 command.step, " is not awaited"));
  }
  t.changed = true;
  const bool complete = command.error.empty();
  const std::string reason = complete ? "CHECKPOINT_WRITTEN" : "CHECKPOINT_FAILED";
  const std::string message = complete
                                  ? absl::StrFormat("step %d: %s, %d bytes in %.3g s", command.step,
                                                    command.path, command.bytes, command.seconds)
                                  : absl::StrCat("step ", command.step, ": ", command.error);
  if (complete && command.step >= job.checkpoint_step) {
    job.checkpoint = command.path;
    job.checkpoint_step = command.step;
  }
  t.SetCondition(job, kCheckpointed, complete, reason, message);
  t.JobEvent(job, reason, message);
}

}  // namespace fedshard::core
