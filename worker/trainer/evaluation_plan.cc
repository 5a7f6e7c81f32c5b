#include "worker/trainer/evaluation_plan.h"

namespace fedshard::trainer {

std::vector<int64_t> EvaluationWindows(const Mesh& mesh, int32_t rank, int64_t windows) {
  const int64_t group = mesh.CoordinatesOf(rank).group;
  const int64_t first = group * windows / mesh.groups;
  const int64_t end = (group + 1) * windows / mesh.groups;
  const int64_t ranks = mesh.group_size(), mine = rank % ranks;
  std::vector<int64_t> result;
  for (int64_t start = first; start < end; start += ranks) {
    result.push_back(start + mine < end ? start + mine : -1);
  }
  return result;
}

}  // namespace fedshard::trainer
