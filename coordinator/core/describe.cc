#include "coordinator/core/describe.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fedshard::core {
namespace {

constexpr size_t kLogLinesShown = 10;
constexpr size_t kLogLineBytesShown = 400;

}  // namespace

std::string CountOf(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string FormatRanks(const std::vector<int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    if (i > 0) absl::StrAppend(&text, ", ");
    absl::StrAppend(&text, ranks[i]);
    if (end > i) absl::StrAppend(&text, "-", ranks[end]);
    i = end + 1;
  }
  return text;
}

std::vector<int32_t> LivingRanksOn(const Job& job, const NodeId& node) {
  std::vector<int32_t> ranks;
  for (const Group& group : job.groups) {
    for (const Rank& rank : group.ranks) {
      if (rank.placement.node == node && rank.state != RankState::kExited) {
        ranks.push_back(rank.placement.rank);
      }
    }
  }
  return ranks;
}

std::string DescribeRanks(const Job& job, const std::function<bool(const Rank&)>& matches) {
  std::map<NodeId, std::vector<int32_t>> by_node;
  for (const Group& group : job.groups) {
    for (const Rank& rank : group.ranks) {
      if (matches(rank)) by_node[rank.placement.node].push_back(rank.placement.rank);
    }
  }
  std::string text;
  for (const auto& [node, ranks] : by_node) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", FormatRanks(ranks), " on ", node);
  }
  return text;
}

std::string DescribeLivingRanks(const Job& job) {
  return DescribeRanks(job, [](const Rank& rank) { return rank.state != RankState::kExited; });
}

std::string FormatHash(uint64_t hash) { return absl::StrFormat("0x%016x", hash); }

std::string SignalName(int32_t signal) {
  // Linux numbers, named here so that the text does not depend on the C library.
  static constexpr const char* kNames[] = {
      "",        "SIGHUP",  "SIGINT",    "SIGQUIT", "SIGILL",  "SIGTRAP", "SIGABRT",
      "SIGBUS",  "SIGFPE",  "SIGKILL",   "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE",
      "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP",
      "SIGTTIN", "SIGTTOU", "SIGURG",    "SIGXCPU", "SIGXFSZ"};
  if (signal > 0 && signal < static_cast<int32_t>(std::size(kNames))) return kNames[signal];
  return absl::StrCat("signal ", signal);
}

std::string FormatLogTail(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = "; last lines of its log:";
  const size_t first = lines.size() - std::min(lines.size(), kLogLinesShown);
  for (size_t i = first; i < lines.size(); ++i) {
    absl::StrAppend(&text, "\n  ", lines[i].substr(0, kLogLineBytesShown));
  }
  return text;
}

}  // namespace fedshard::core
