// What users ask for: submit and cancel.
#pragma once

#include "coordinator/core/transition.h"

namespace fedshard::core {

// Answers OK, ALREADY_EXISTS (JOB_EXISTS), RESOURCE_EXHAUSTED (QUEUE_FULL) or INVALID_ARGUMENT
// (INVALID_FIELD). A repeated request id gets the first answer; the name of a job that has ended
// stays taken.
void HandleSubmitJob(Transition& t, const SubmitJob& command);

// Answers OK also when the job is canceling or canceled already, NOT_FOUND (JOB_NOT_FOUND), or
// FAILED_PRECONDITION (JOB_ENDED).
void HandleCancelJob(Transition& t, const CancelJob& command);

}  // namespace fedshard::core
