#include "cli/follow.h"

#include "cli/interrupt.h"
#include "cli/progress.h"

namespace fedshard::cli {

Outcome FollowJob(Client& client, const std::string& id, bool show, v1::Job& last) {
  OnInterrupt([&client] { client.Interrupt(); });
  ProgressPrinter printer(IsLiveTerminal(), TerminalOptions());
  const Outcome outcome = client.Watch(id, [&](const v1::Job& job) {
    last = job;
    if (show) printer.Show(job);
    return true;
  });
  OnInterrupt(nullptr);
  return outcome;
}

}  // namespace fedshard::cli
