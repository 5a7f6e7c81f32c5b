// Enum values and numbers for people. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/mesh.h"
#include "fedshard/v1/cluster.pb.h"
#include "fedshard/v1/job.pb.h"

namespace fedshard::cli {

// "RUNNING", without the enum's prefix.
std::string StateName(v1::JobState state);
std::string StateName(v1::NodeState state);
std::string StateName(v1::GroupState state);
std::string StateName(v1::RoundState state);
bool HasEnded(v1::JobState state);

// "jobs/a/groups/1" -> "1".
std::string LastPart(const std::string& name);
// "fl+hsdp 2x2x2".
std::string MeshText(const v1::MeshSpec& mesh);
// "2x2x2".
std::string MeshText(const Mesh& mesh);
// "2026-01-31 12:00:00Z"; empty when unset.
std::string TimeText(const google::protobuf::Timestamp& time);
// printf("%.*f").
std::string Fixed(double value, int digits);

// Columns aligned, two spaces apart; the first row is the header.
std::string Table(const std::vector<std::vector<std::string>>& rows);

}  // namespace fedshard::cli
