// Jobs between the API and the core. Pure functions; the spec must have passed ValidateSpec.
#pragma once

#include "coordinator/core/state.h"
#include "coordinator/core/types.h"
#include "coordinator/service/view.h"
#include "fedshard/v1/job.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace fedshard::rpc {

core::JobSpec SpecToCore(const v1::JobSpec& spec);

v1::Job JobToProto(const core::Job& job, const service::View& view);
// The answer to validate_only: the job as it would be queued, with the reason why it would wait, if
// it would.
v1::Job ValidatedJobToProto(const v1::JobSpec& spec, const std::string& reason,
                            const std::string& message);

v1::JobState JobStateToProto(core::JobState state);
v1::GroupState GroupStateToProto(core::GroupState state);
google::protobuf::Timestamp TimeToProto(int64_t wall_us);

}  // namespace fedshard::rpc
