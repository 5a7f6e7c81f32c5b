// Records come back exactly as they went in, doubles and blobs bit for bit; anything truncated,
// damaged or foreign is DATA_LOSS and never a crash or another command.
#include "coordinator/core/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace fedshard::core {
namespace {

const RankId kFrom{"node-0", "i1", "job", 7, 3};

std::vector<Command> AllCommands() {
  SubmitJob submit;
  submit.reply_to = std::numeric_limits<uint64_t>::max();
  submit.request_id = "r1";
  submit.spec = {
      "job", {2, 3, 4}, true, false, 100, 8,  24, 128,
      true,  5,         true, 3,     11,  12, 13, std::string("blob\0with\xff zeros\n", 17)};
  submit.validate_only = true;
  RegisterNode node{"node-0", "i1", 8, {{"topology", "b/r/h"}, {"", ""}}, "10.0.0.1", "0.1.0"};
  GroupReady ready{
      kFrom, 2, 8, 1024, -0.0, std::nextafter(1.0, 2.0), std::numeric_limits<double>::denorm_min(),
      1};
  RankVote vote{kFrom,
                2,
                1,
                0xfedcba9876543210u,
                {1, -2, std::numeric_limits<int64_t>::min()},
                std::numeric_limits<double>::infinity(),
                1000,
                1024};
  return {submit,
          CancelJob{1, "r2", "job", "because"},
          node,
          NodeHeartbeat{"node-0", "i1"},
          ready,
          vote,
          EvaluationReport{kFrom, 4, std::nan("7"), 99},
          JobSummary{kFrom, "abcd", {0, 1, 4294967295u}},
          RankFailure{kFrom, "NON_FINITE_LOSS", ""},
          RankExited{kFrom, -1, 9, "STOPPED", "m", {"line", "", std::string("\0", 1)}},
          Tick{},
          NodeDisconnected{"node-0", "i1"},
          NodeLost{"node-0", "i1"},
          DeadlinesPassed{},
          CheckpointReport{kFrom, 8, "/c/step-8", 4096, 0.5, "disk full"}};
}

// The checksum as the format defines it, so that damage behind a right checksum is tried too.
std::string WithChecksum(std::string body) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : body) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  for (int i = 0; i < 8; ++i) body.push_back(static_cast<char>(hash >> (8 * i)));
  return body;
}

TEST(Record, EveryKindRoundTrips) {
  const std::vector<Command> commands = AllCommands();
  ASSERT_EQ(commands.size(), std::variant_size_v<Command>);
  for (size_t i = 0; i < commands.size(); ++i) {
    const Instant time{-5, 1'700'000'000'123'456};
    const Record record = EncodeRecord(commands[i], time);
    const auto decoded = DecodeRecord(record.bytes);
    ASSERT_TRUE(decoded.ok()) << i << ": " << decoded.status();
    EXPECT_EQ(decoded->command.index(), i);
    EXPECT_EQ(decoded->time.steady_us, time.steady_us);
    EXPECT_EQ(decoded->time.wall_us, time.wall_us);
    // All fields are in the bytes, so equal bytes mean equal commands.
    EXPECT_EQ(EncodeRecord(decoded->command, time).bytes, record.bytes);
  }
}

TEST(Record, FieldsArriveInTheirPlaces) {
  const std::vector<Command> commands = AllCommands();
  const auto submit = DecodeRecord(EncodeRecord(commands[0], {}).bytes);
  ASSERT_TRUE(submit.ok());
  const auto& spec = std::get<SubmitJob>(submit->command).spec;
  EXPECT_EQ(spec, std::get<SubmitJob>(commands[0]).spec);
  const auto ready = DecodeRecord(EncodeRecord(commands[4], {}).bytes);
  ASSERT_TRUE(ready.ok());
  const auto& report = std::get<GroupReady>(ready->command);
  EXPECT_TRUE(std::signbit(report.first_loss));
  EXPECT_EQ(report.last_loss, std::nextafter(1.0, 2.0));
  const auto vote = DecodeRecord(EncodeRecord(commands[5], {}).bytes);
  ASSERT_TRUE(vote.ok());
  EXPECT_EQ(std::get<RankVote>(vote->command).bytes.federation,
            std::numeric_limits<int64_t>::min());
  const auto exited = DecodeRecord(EncodeRecord(commands[9], {}).bytes);
  ASSERT_TRUE(exited.ok());
  EXPECT_EQ(std::get<RankExited>(exited->command).log_tail,
            std::get<RankExited>(commands[9]).log_tail);
}

TEST(Record, TruncatedIsDataLoss) {
  for (const Command& command : AllCommands()) {
    const std::string bytes = EncodeRecord(command, {}).bytes;
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(DecodeRecord(bytes.substr(0, size)).status().code(), absl::StatusCode::kDataLoss);
    }
    EXPECT_FALSE(DecodeRecord(bytes + "x").ok());
  }
}

TEST(Record, AnyFlippedBitIsDataLoss) {
  for (const Command& command : AllCommands()) {
    const std::string bytes = EncodeRecord(command, {}).bytes;
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string damaged = bytes;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_EQ(DecodeRecord(damaged).status().code(), absl::StatusCode::kDataLoss);
    }
  }
}

// Damage that has a right checksum, as a bug in a writer would: refused or decoded, but bounded and
// without undefined behaviour (the sanitizer builds look at that).
TEST(Record, GarbageBehindARightChecksumIsBounded) {
  uint32_t random = 99;
  auto next = [&random]() {
    random = random * 1664525u + 1013904223u;
    return random >> 16;
  };
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<Command> commands = AllCommands();
    std::string body = EncodeRecord(commands[next() % commands.size()], {}).bytes;
    body.resize(body.size() - 8);
    for (int k = 0; k < 3; ++k) body[4 + next() % (body.size() - 4)] = static_cast<char>(next());
    if (next() % 2 == 0) body.resize(5 + next() % (body.size() - 4));
    if (!DecodeRecord(WithChecksum(body)).ok()) ++refused;
  }
  EXPECT_GT(refused, 5'000);
}

TEST(Record, UnknownVersionAndKindAreNamed) {
  std::string bytes = EncodeRecord(Tick{}, {}).bytes;
  std::string body = bytes.substr(0, bytes.size() - 8);
  body[3] = 2;
  EXPECT_EQ(DecodeRecord(WithChecksum(body)).status().message(),
            "journal record: unknown format or version");
  body[3] = 1;
  body[4] = 99;
  EXPECT_EQ(DecodeRecord(WithChecksum(body)).status().message(), "journal record: unknown kind 99");
}

}  // namespace
}  // namespace fedshard::core
