#include "coordinator/core/votes.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/describe.h"

namespace fedshard::core {
namespace {

constexpr int kShardsNamed = 4;

}  // namespace

std::string DescribeMismatch(const Job& job, const Round& round) {
  std::map<int32_t, std::map<uint64_t, std::vector<int32_t>>> shards;
  for (const auto& [rank, vote] : round.votes) {
    shards[job.spec.mesh.CoordinatesOf(rank).shard][vote.shard_hash].push_back(rank);
  }
  std::string text;
  int named = 0, differing = 0;
  for (const auto& [shard, hashes] : shards) {
    if (hashes.size() < 2) continue;
    ++differing;
    if (++named > kShardsNamed) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "shard ", shard, " differs:");
    const char* separator = " ";
    for (const auto& [hash, ranks] : hashes) {
      absl::StrAppend(&text, separator, FormatHash(hash), " on ", FormatRanks(ranks));
      separator = ", ";
    }
  }
  if (differing == 0) return "";
  if (differing > kShardsNamed) {
    absl::StrAppend(&text, "; and ", differing - kShardsNamed, " more shards");
  }
  return absl::StrCat("round ", round.number, ": ", text);
}

}  // namespace fedshard::core
