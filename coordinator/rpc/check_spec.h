// Whether a submitted spec may become a job. Pure.
#pragma once

#include "coordinator/rpc/errors.h"
#include "fedshard/v1/job.pb.h"

namespace fedshard::rpc {

// Adds what is wrong, with fields as paths in the request ("spec.mesh.shards").
void CheckSpec(const v1::JobSpec& spec, Violations& violations);

}  // namespace fedshard::rpc
