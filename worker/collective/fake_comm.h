// Groups whose ranks are threads of one process, for tests: the collectives of LinkComm over
// messages in memory, so sums, order and byte counts are the real ones. With a switch that makes an
// operation fail or hang.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "common/mesh.h"
#include "worker/collective/comm.h"
#include "worker/collective/group_factory.h"

namespace fedshard::collective {

enum class Fault { kNone, kFail, kHang };

// One group. Thread-safe; must outlive its Comms.
class FakeWorld {
 public:
  explicit FakeWorld(int size, std::chrono::milliseconds timeout = std::chrono::seconds(60));
  ~FakeWorld();

  // One per rank.
  std::unique_ptr<Comm> Connect(int rank);
  // The first message of the rank's operation number `operation` (0, 1, ... of the Comm; an
  // all-reduce counts as two) fails, or hangs until Abort(). A rank whose operation failed is dead
  // for its peers.
  void SetFault(int rank, uint32_t operation, Fault fault);

 private:
  friend class FakeLink;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// All groups of a mesh.
class FakeMesh {
 public:
  explicit FakeMesh(const Mesh& mesh);
  MeshComms Connect(int rank);

 private:
  Mesh mesh_;
  std::map<std::pair<int, int>, FakeWorld> shard_, replica_, federation_;
};

}  // namespace fedshard::collective
