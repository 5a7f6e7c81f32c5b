#include "worker/collective/group_factory.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "worker/collective/gloo_link.h"
#include "worker/collective/host_staged_comm.h"
#include "worker/collective/link_comm.h"
#include "worker/collective/nccl_plugin.h"
#include "worker/collective/self_comm.h"

namespace fedshard::collective {
namespace {

std::unique_ptr<Comm> Connect(const c10::intrusive_ptr<c10d::Store>& parent,
                              const std::string& prefix, int rank, int size, bool staged,
                              const GroupOptions& options) {
  if (size == 1) return std::make_unique<SelfComm>();
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, parent);
  auto comm =
      std::make_unique<LinkComm>(ConnectGloo(store, rank, size, options.address, options.timeout));
  if (staged) return std::make_unique<HostStagedComm>(std::move(comm));
  return comm;
}

std::string Prefix(const char* tier, int a, int b) {
  return std::string(tier) + "/" + std::to_string(a) + "/" + std::to_string(b);
}

}  // namespace

void MeshComms::Abort() {
  for (const auto* comm : {&shard, &replica, &federation}) {
    if (*comm) (*comm)->Abort();
  }
}

MeshComms ConnectMesh(const Mesh& mesh, int rank,
                      const c10::intrusive_ptr<c10d::Store>& group_store,
                      const c10::intrusive_ptr<c10d::Store>& federation_store,
                      const GroupOptions& options) {
  const MeshCoordinates at = mesh.CoordinatesOf(rank);
  const bool staged = options.backend != Backend::kGloo;
  // Every rank makes its groups in this order, so no two can wait for each other crosswise.
  MeshComms comms;
  if (options.backend == Backend::kNccl && mesh.group_size() > 1) {
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>("nccl/" + std::to_string(at.group), group_store);
    NcclTiers tiers = ConnectNccl(
        {store, at.shard, mesh.shards, at.replica, mesh.replicas, options.gpu, options.timeout});
    comms.shard = std::move(tiers.shard);
    comms.replica = std::move(tiers.replica);
  } else {
    comms.shard = Connect(group_store, Prefix("shard", at.group, at.replica), at.shard, mesh.shards,
                          staged, options);
    comms.replica = Connect(group_store, Prefix("replica", at.group, at.shard), at.replica,
                            mesh.replicas, staged, options);
  }
  comms.federation = Connect(federation_store, Prefix("federation", at.replica, at.shard), at.group,
                             mesh.groups, staged, options);
  return comms;
}

}  // namespace fedshard::collective
