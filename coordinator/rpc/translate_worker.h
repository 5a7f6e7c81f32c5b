// The worker stream between the API and the service. Pure functions.
#pragma once

#include <optional>

#include "coordinator/rpc/errors.h"
#include "coordinator/service/node_messages.h"
#include "fedshard/v1/worker_service.pb.h"

namespace fedshard::rpc {

// Violations are by field of the Register message.
service::NodeRegistration RegistrationFromProto(const v1::Register& message,
                                                Violations& violations);
// Absent for a message that is no report (Register, Heartbeat, nothing).
std::optional<service::NodeReport> ReportFromProto(const v1::ConnectRequest& message);

v1::ConnectResponse MessageToProto(const service::NodeMessage& message);

}  // namespace fedshard::rpc
