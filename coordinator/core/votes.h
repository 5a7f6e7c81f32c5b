// Do the votes of a round agree? Pure functions.
#pragma once

#include <string>

#include "coordinator/core/state.h"

namespace fedshard::core {

// "" when for every shard index all groups and replicas that voted have the same hash; else the
// shards that differ, with the ranks behind each hash.
std::string DescribeMismatch(const Job& job, const Round& round);

}  // namespace fedshard::core
