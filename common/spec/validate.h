// The rules of a job specification, for clients (before they submit) and the coordinator (which
// trusts nobody).
#pragma once

#include <string>
#include <vector>

#include "fedshard/v1/error.pb.h"
#include "fedshard/v1/job.pb.h"

namespace fedshard {

// Every broken rule; empty = valid. Fields are paths below the spec: "mesh.shards".
std::vector<v1::FieldViolation> ValidateSpec(const v1::JobSpec& spec);

// Derived numbers of a valid spec.
int64_t SamplesPerGroupStep(const v1::JobSpec& spec);  // micro_batch * accumulation * R * S
int64_t TokensPerStep(const v1::JobSpec& spec);        // Of all groups.
// All of the run's, those before a resume point included.
int64_t TotalTokens(const v1::JobSpec& spec);
int32_t WorldSize(const v1::JobSpec& spec);
// Whether rounds average (the FL modes).
bool Averages(const v1::JobSpec& spec);

// "fl+hsdp", as in job files; empty for an unknown value.
std::string MeshModeName(v1::MeshMode mode);

}  // namespace fedshard
