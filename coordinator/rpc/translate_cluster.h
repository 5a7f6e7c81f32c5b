// Nodes, groups and rounds from the core to the API. Pure functions.
#pragma once

#include <string>

#include "coordinator/core/state.h"
#include "fedshard/v1/cluster.pb.h"

namespace fedshard::rpc {

v1::Node NodeToProto(const core::Node& node, int64_t now_us);
v1::Group GroupToProto(const core::JobId& job, const core::Group& group);
v1::Round RoundToProto(const core::JobId& job, const core::Round& round, int64_t now_us);

}  // namespace fedshard::rpc
