// Words for people about ranks and their ends. Pure functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coordinator/core/commands.h"
#include "coordinator/core/state.h"

namespace fedshard::core {

// "1 slot", "2 slots"
std::string CountOf(int64_t count, const std::string& noun);

// "rank 3", "ranks 0-3, 7"; `ranks` ascending.
std::string FormatRanks(const std::vector<int32_t>& ranks);

// Ranks on this node that have not exited, ascending.
std::vector<int32_t> LivingRanksOn(const Job& job, const NodeId& node);

// "ranks 0-3 on node-0, rank 5 on node-1" of the ranks that match.
std::string DescribeRanks(const Job& job, const std::function<bool(const Rank&)>& matches);
std::string DescribeLivingRanks(const Job& job);

// "0x00000000000000ff"
std::string FormatHash(uint64_t hash);

// "SIGKILL", or "signal 40" for one without a name here.
std::string SignalName(int32_t signal);

// "; last lines of its log:\n  ..." with a bounded number of bounded lines; "" without lines.
std::string FormatLogTail(const std::vector<std::string>& lines);

}  // namespace fedshard::core
