// Rank arithmetic of the mesh (F, R, S), row-major with the shard index fastest: rank = f*R*S + r*S
// + s.
#pragma once

#include <cstdint>

namespace fedshard {

struct MeshCoordinates {
  int32_t group = 0;    // f
  int32_t replica = 0;  // r
  int32_t shard = 0;    // s
};

struct Mesh {
  int32_t groups = 1;    // F
  int32_t replicas = 1;  // R
  int32_t shards = 1;    // S

  bool operator==(const Mesh&) const = default;

  int32_t group_size() const { return replicas * shards; }
  int32_t world_size() const { return groups * replicas * shards; }
  int32_t RankOf(const MeshCoordinates& at) const {
    return at.group * group_size() + at.replica * shards + at.shard;
  }
  MeshCoordinates CoordinatesOf(int32_t rank) const {
    return {rank / group_size(), rank / shards % replicas, rank % shards};
  }
};

}  // namespace fedshard
