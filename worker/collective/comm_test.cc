// Every operation of every CPU Comm, for one to four ranks and lengths that do not divide: right
// values, sums in tree order, the same bits on all ranks, payload bytes counted as they must be;
// and an injected fault ends in CommError.
#include "worker/collective/comm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "worker/collective/fake_comm.h"
#include "worker/collective/group_factory.h"
#include "worker/collective/store_adapter.h"
#include "worker/collective/testing/ranks.h"
#include "worker/collective/tree_sum.h"

namespace fedshard::collective {
namespace {

enum class Kind { kFake, kGloo, kStaged };

struct Case {
  int ranks;
  Kind kind;
};

class Comms : public ::testing::TestWithParam<Case> {
 protected:
  // Runs `body` with a connected Comm on every rank.
  void Run(const std::function<void(Comm&)>& body) {
    const auto [ranks, kind] = GetParam();
    FakeWorld world(ranks);
    auto rendezvous = std::make_shared<MemoryKeyValue>();
    RunRanks(ranks, [&, kind = kind, ranks = ranks](int rank) {
      if (kind == Kind::kFake) {
        body(*world.Connect(rank));
        return;
      }
      const auto store = MakeStore(rendezvous, std::chrono::seconds(30));
      GroupOptions options;
      if (kind == Kind::kStaged) options.backend = Backend::kGlooStaged;
      MeshComms comms = ConnectMesh({1, 1, ranks}, rank, store, store, options);
      body(*comms.shard);
    });
  }
};

at::Tensor Contribution(int rank, int64_t length) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(rank + 17);
  return at::randn({length}, generator) * std::pow(10.0, rank);
}

at::Tensor ExpectedSum(int ranks, int64_t length) {
  std::vector<at::Tensor> pieces;
  for (int rank = 0; rank < ranks; ++rank) pieces.push_back(Contribution(rank, length));
  at::Tensor out = at::empty({length});
  TreeSum(pieces, 0, out);
  return out;
}

TEST_P(Comms, AllToAllHandsEachRankItsPartWhateverTheType) {
  Run([](Comm& comm) {
    for (const at::ScalarType type : {at::kFloat, at::kByte, at::kBFloat16}) {
      const int64_t part = 301;
      at::Tensor in = at::empty({comm.size() * part}, type);
      at::Tensor out = at::zeros({comm.size() * part}, type);
      for (int to = 0; to < comm.size(); ++to) {
        in.narrow(0, to * part, part).fill_(10 * comm.rank() + to);
      }
      const int64_t before = comm.bytes_sent();
      comm.AllToAll(in, out).Wait();
      for (int from = 0; from < comm.size(); ++from) {
        const at::Tensor got = out.narrow(0, from * part, part);
        EXPECT_TRUE(at::equal(got, at::full_like(got, 10 * from + comm.rank()))) << from;
      }
      EXPECT_EQ(comm.bytes_sent() - before,
                (comm.size() - 1) * part * static_cast<int64_t>(in.element_size()));
    }
  });
}

TEST_P(Comms, AllGatherAndBroadcastMoveAnyType) {
  Run([](Comm& comm) {
    for (const at::ScalarType type : {at::kByte, at::kChar, at::kBFloat16, at::kLong}) {
      const int64_t part = 515;
      const int64_t bytes = part * static_cast<int64_t>(at::elementSize(type));
      at::Tensor full = at::zeros({comm.size() * part}, type);
      full.narrow(0, comm.rank() * part, part).fill_(comm.rank() + 3);
      int64_t before = comm.bytes_sent();
      comm.AllGather(full).Wait();
      for (int from = 0; from < comm.size(); ++from) {
        const at::Tensor got = full.narrow(0, from * part, part);
        EXPECT_TRUE(at::equal(got, at::full_like(got, from + 3))) << type << " of " << from;
      }
      EXPECT_EQ(comm.bytes_sent() - before, (comm.size() - 1) * bytes);
      before = comm.bytes_sent();
      at::Tensor same = at::full({part}, comm.rank() + 5, at::TensorOptions(type));
      const int root = comm.size() - 1;
      comm.Broadcast(same, root).Wait();
      EXPECT_TRUE(at::equal(same, at::full_like(same, root + 5))) << type;
      EXPECT_EQ(comm.bytes_sent() - before, comm.rank() == root ? (comm.size() - 1) * bytes : 0);
    }
  });
}

TEST_P(Comms, AllGatherPutsEveryPartInPlace) {
  Run([](Comm& comm) {
    const int64_t part = 1237;
    at::Tensor full = at::full({comm.size() * part}, -1.0);
    full.narrow(0, comm.rank() * part, part).copy_(Contribution(comm.rank(), part));
    const int64_t before = comm.bytes_sent();
    comm.AllGather(full).Wait();
    for (int rank = 0; rank < comm.size(); ++rank) {
      EXPECT_TRUE(at::equal(full.narrow(0, rank * part, part), Contribution(rank, part)));
    }
    EXPECT_EQ(comm.bytes_sent() - before, (comm.size() - 1) * part * 4);
  });
}

TEST_P(Comms, ReduceScatterSumsInTreeOrderAndLeavesItsInputAlone) {
  Run([](Comm& comm) {
    const int64_t part = 4099;
    for (int repeat = 0; repeat < 3; ++repeat) {  // Staging is used again.
      const at::Tensor full = Contribution(comm.rank(), comm.size() * part);
      const at::Tensor input = full.clone();
      at::Tensor shard = at::empty({part});
      const int64_t before = comm.bytes_sent();
      comm.ReduceScatter(input, shard).Wait();
      EXPECT_TRUE(at::equal(input, full));
      EXPECT_TRUE(at::equal(
          shard, ExpectedSum(comm.size(), comm.size() * part).narrow(0, comm.rank() * part, part)));
      EXPECT_EQ(comm.bytes_sent() - before, (comm.size() - 1) * part * 4);
    }
  });
}

TEST_P(Comms, AllReduceGivesTheSameBitsForAnyLength) {
  Run([](Comm& comm) {
    for (const int64_t length : {1, 2, 3, 5, 1000, 4097}) {
      at::Tensor tensor = Contribution(comm.rank(), length);
      comm.AllReduce(tensor).Wait();
      EXPECT_TRUE(at::equal(tensor, ExpectedSum(comm.size(), length))) << length;
    }
    at::Tensor tensor = Contribution(comm.rank(), 1200);
    const int64_t before = comm.bytes_sent();
    comm.AllReduce(tensor).Wait();
    EXPECT_EQ(comm.bytes_sent() - before, 2 * (comm.size() - 1) * 1200 * 4 / comm.size());
  });
}

TEST_P(Comms, OperationsOverlapAndBroadcastReachesAll) {
  Run([](Comm& comm) {
    at::Tensor gathered = at::full({comm.size() * 100}, 1.0 + comm.rank());
    at::Tensor full = Contribution(comm.rank(), comm.size() * 50), shard = at::empty({50});
    at::Tensor reduced = Contribution(comm.rank(), 333);
    Ticket gather = comm.AllGather(gathered);
    Ticket scatter = comm.ReduceScatter(full, shard);
    Ticket reduce = comm.AllReduce(reduced);
    reduce.Wait();
    scatter.Wait();
    gather.Wait();
    EXPECT_TRUE(at::equal(reduced, ExpectedSum(comm.size(), 333)));
    for (int rank = 0; rank < comm.size(); ++rank) {
      EXPECT_EQ(gathered[rank * 100].item<float>(), 1.0f + rank);
    }
    const int root = comm.size() - 1;
    at::Tensor message = comm.rank() == root ? Contribution(9, 77) : at::zeros({77});
    comm.Broadcast(message, root).Wait();
    EXPECT_TRUE(at::equal(message, Contribution(9, 77)));
  });
}

TEST_P(Comms, ScalarsComeByRankAndAreNotPayload) {
  Run([](Comm& comm) {
    const int64_t before = comm.bytes_sent();
    const auto scalars = comm.AllGatherScalars({0.5 + comm.rank(), -1.0});
    const auto words = comm.AllGatherWords({0xfedcba9876543210u + comm.rank()});
    EXPECT_EQ(comm.bytes_sent(), before);
    for (int rank = 0; rank < comm.size(); ++rank) {
      EXPECT_EQ(scalars[rank], (std::vector<double>{0.5 + rank, -1.0}));
      EXPECT_EQ(words[rank], (std::vector<uint64_t>{0xfedcba9876543210u + rank}));
    }
    EXPECT_EQ(comm.AllGatherScalars({}).size(), static_cast<size_t>(comm.size()));
  });
}

TEST_P(Comms, AfterAbortEverythingThrows) {
  Run([](Comm& comm) {
    comm.Abort();
    comm.Abort();
    at::Tensor tensor = at::zeros({comm.size() * 8});
    EXPECT_THROW(comm.AllGather(tensor).Wait(), CommError);
    EXPECT_THROW(comm.AllReduce(tensor).Wait(), CommError);
  });
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const char* names[] = {"Fake", "Gloo", "Staged"};
  return names[static_cast<int>(info.param.kind)] + std::to_string(info.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(All, Comms,
                         ::testing::Values(Case{1, Kind::kFake}, Case{2, Kind::kFake},
                                           Case{3, Kind::kFake}, Case{4, Kind::kFake},
                                           Case{1, Kind::kGloo}, Case{2, Kind::kGloo},
                                           Case{3, Kind::kGloo}, Case{4, Kind::kGloo},
                                           Case{2, Kind::kStaged}, Case{3, Kind::kStaged}),
                         NameOf);

TEST(FakeWorld, FailedRankAndItsPeersThrow) {
  FakeWorld world(3);
  world.SetFault(1, 2, Fault::kFail);
  RunRanks(3, [&](int rank) {
    const auto comm = world.Connect(rank);
    at::Tensor tensor = at::ones({9});
    comm->AllGather(tensor).Wait();
    comm->AllGather(tensor).Wait();
    EXPECT_THROW(comm->AllGather(tensor).Wait(), CommError);
  });
}

TEST(FakeWorld, HungRankWaitsForAbort) {
  FakeWorld world(2);
  world.SetFault(0, 0, Fault::kHang);
  const auto hung = world.Connect(0);
  std::thread watcher([&] { hung->Abort(); });
  at::Tensor tensor = at::ones({2});
  EXPECT_THROW(hung->AllGather(tensor).Wait(), CommError);
  watcher.join();
}

TEST(FakeMesh, RanksMeetThoseOfTheirTier) {
  const Mesh mesh{2, 2, 3};
  FakeMesh fake(mesh);
  RunRanks(mesh.world_size(), [&](int rank) {
    MeshComms comms = fake.Connect(rank);
    const MeshCoordinates at = mesh.CoordinatesOf(rank);
    for (const auto& [comm, mine] :
         {std::pair{comms.shard.get(), at.shard}, std::pair{comms.replica.get(), at.replica},
          std::pair{comms.federation.get(), at.group}}) {
      EXPECT_EQ(comm->rank(), mine);
      std::vector<std::vector<double>> ranks = comm->AllGatherScalars({1.0 * rank});
      EXPECT_EQ(ranks[mine][0], rank);
    }
    EXPECT_EQ(comms.federation->AllGatherScalars({1.0 * rank})[1 - at.group][0],
              mesh.RankOf({1 - at.group, at.replica, at.shard}));
  });
}

}  // namespace
}  // namespace fedshard::collective
