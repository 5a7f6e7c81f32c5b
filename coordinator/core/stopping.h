// How a job's ranks are stopped and how it ends: failed, canceled or completed. Terminal states
// absorb everything.
#pragma once

#include <string>

#include "coordinator/core/transition.h"

namespace fedshard::core {

// Tells all living ranks to stop, aborts the open round and kills the rendezvous scopes. Does
// nothing the second time.
void BeginStop(Transition& t, Job& job, const std::string& message);

// The job is FAILED with this cause, at once. Ignored when the job is canceling or has ended: the
// first cause wins.
void FailJob(Transition& t, Job& job, const std::string& reason, const std::string& message);

// A collective failed, most likely because another rank died: stops the ranks at once, but leaves
// the cause open for a moment, until a more specific one arrives.
void FailJobUnlessExplained(Transition& t, Job& job, const std::string& message);

// No specific cause came: the job fails with the pending one, or with NODE_LOST when a node of its
// ranks is cut off.
void DecidePendingFailure(Transition& t, Job& job);

// To be called after ranks have exited: ends what waits for the last of them.
void CheckAllExited(Transition& t, Job& job);

// The stop's deadline has passed: says so in the condition Stopped.
void ReportStopOverdue(Transition& t, Job& job);

}  // namespace fedshard::core
