#include "coordinator/core/record.h"

#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fedshard::core {
namespace {

constexpr char kMagic[] = {'F', 'S', 'R', 1};
constexpr size_t kChecksumBytes = 8;

uint64_t Fnv1a(const char* data, size_t size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; ++i) {
    hash ^= static_cast<unsigned char>(data[i]);
    hash *= 0x100000001b3u;
  }
  return hash;
}

// Appends values.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  template <std::integral T>
  void operator()(const T& value) {
    Put(static_cast<uint64_t>(value), std::is_same_v<T, bool> ? 1 : 8);
  }
  void operator()(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    Put(bits, 8);
  }
  void operator()(const std::string& value) {
    Put(value.size(), 4);
    out_.append(value);
  }
  template <class T>
  void operator()(const std::vector<T>& values) {
    Put(values.size(), 4);
    for (const T& value : values) (*this)(value);
  }
  void operator()(const std::map<std::string, std::string>& values) {
    Put(values.size(), 4);
    for (const auto& [key, value] : values) {
      (*this)(key);
      (*this)(value);
    }
  }

 private:
  void Put(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }

  std::string& out_;
};

// Takes values; after the first that is not there, every value is empty and ok() is false.
class Reader {
 public:
  Reader(const char* data, size_t size) : data_(data), left_(size) {}

  bool ok() const { return ok_; }
  size_t left() const { return left_; }

  template <std::integral T>
  void operator()(T& value) {
    value = static_cast<T>(Get(std::is_same_v<T, bool> ? 1 : 8));
  }
  void operator()(double& value) {
    const uint64_t bits = Get(8);
    std::memcpy(&value, &bits, sizeof(value));
  }
  void operator()(std::string& value) {
    const size_t size = GetCount();
    value.assign(data_, size);
    Skip(size);
  }
  template <class T>
  void operator()(std::vector<T>& values) {
    // Grown one by one: a damaged count must not reserve memory.
    for (size_t count = GetCount(); count > 0 && ok_; --count) (*this)(values.emplace_back());
  }
  void operator()(std::map<std::string, std::string>& values) {
    for (size_t count = GetCount(); count > 0 && ok_; --count) {
      std::string key, value;
      (*this)(key);
      (*this)(value);
      values.emplace(std::move(key), std::move(value));
    }
  }

 private:
  uint64_t Get(size_t bytes) {
    if (left_ < bytes) {
      Fail();
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      value |= uint64_t{static_cast<unsigned char>(data_[i])} << (8 * i);
    }
    Skip(bytes);
    return value;
  }
  // Every element has at least one byte.
  size_t GetCount() {
    const uint64_t count = Get(4);
    if (count <= left_) return count;
    Fail();
    return 0;
  }
  void Skip(size_t bytes) {
    data_ += bytes;
    left_ -= bytes;
  }
  void Fail() {
    ok_ = false;
    left_ = 0;
  }

  const char* data_;
  size_t left_;
  bool ok_ = true;
};

// The fields of each command, once for both directions.
template <class T, class U>
concept Like = std::same_as<std::remove_const_t<T>, U>;

template <class A>
void Fields(A& a, Like<JobSpec> auto& s) {
  a(s.id);
  a(s.mesh.groups);
  a(s.mesh.replicas);
  a(s.mesh.shards);
  a(s.averages);
  a(s.weight_by_tokens);
  a(s.total_steps);
  a(s.steps_per_round);
  a(s.samples_per_step);
  a(s.tokens_per_sample);
  a(s.evaluates);
  a(s.evaluate_every_rounds);
  a(s.checkpoints);
  a(s.checkpoint_every_rounds);
  a(s.first_step);
  a(s.first_tokens);
  a(s.first_sample);
  a(s.blob);
}
template <class A>
void Fields(A& a, Like<RankId> auto& r) {
  a(r.node);
  a(r.incarnation);
  a(r.job);
  a(r.generation);
  a(r.rank);
}
template <class A>
void Fields(A& a, Like<SubmitJob> auto& c) {
  a(c.reply_to);
  a(c.request_id);
  Fields(a, c.spec);
  a(c.validate_only);
}
template <class A>
void Fields(A& a, Like<CancelJob> auto& c) {
  a(c.reply_to);
  a(c.request_id);
  a(c.job);
  a(c.reason);
}
template <class A>
void Fields(A& a, Like<RegisterNode> auto& c) {
  a(c.node);
  a(c.incarnation);
  a(c.slots);
  a(c.labels);
  a(c.data_address);
  a(c.version);
}
template <class A, class C>
requires Like<C, NodeHeartbeat> || Like<C, NodeDisconnected> || Like<C, NodeLost>
void Fields(A& a, C& c) {
  a(c.node);
  a(c.incarnation);
}
template <class A>
void Fields(A& a, Like<GroupReady> auto& c) {
  Fields(a, c.from);
  a(c.round);
  a(c.steps);
  a(c.tokens);
  a(c.first_loss);
  a(c.last_loss);
  a(c.step_seconds);
  a(c.skipped_steps);
}
template <class A>
void Fields(A& a, Like<RankVote> auto& c) {
  Fields(a, c.from);
  a(c.round);
  a(c.attempt);
  a(c.shard_hash);
  a(c.bytes.shard);
  a(c.bytes.replica);
  a(c.bytes.federation);
  a(c.averaging_seconds);
  a(c.parameters);
  a(c.padded_parameters);
}
template <class A>
void Fields(A& a, Like<EvaluationReport> auto& c) {
  Fields(a, c.from);
  a(c.round);
  a(c.loss_sum);
  a(c.tokens);
}
template <class A>
void Fields(A& a, Like<JobSummary> auto& c) {
  Fields(a, c.from);
  a(c.parameter_hash);
  a(c.sample_tokens);
}
template <class A>
void Fields(A& a, Like<CheckpointReport> auto& c) {
  Fields(a, c.from);
  a(c.step);
  a(c.path);
  a(c.bytes);
  a(c.seconds);
  a(c.error);
}
template <class A>
void Fields(A& a, Like<RankFailure> auto& c) {
  Fields(a, c.from);
  a(c.reason);
  a(c.message);
}
template <class A>
void Fields(A& a, Like<RankExited> auto& c) {
  Fields(a, c.from);
  a(c.exit_code);
  a(c.signal);
  a(c.reason);
  a(c.message);
  a(c.log_tail);
}
template <class A, class C>
requires Like<C, Tick> || Like<C, DeadlinesPassed>
void Fields(A&, C&) {}

// Kind numbers, for ever.
template <class C>
struct Kind;
#define FEDSHARD_KIND(type, number)          \
  template <>                                \
  struct Kind<type> {                        \
    static constexpr uint8_t value = number; \
  };
FEDSHARD_KIND(SubmitJob, 1)
FEDSHARD_KIND(CancelJob, 2)
FEDSHARD_KIND(RegisterNode, 3)
FEDSHARD_KIND(NodeHeartbeat, 4)
FEDSHARD_KIND(GroupReady, 5)
FEDSHARD_KIND(RankVote, 6)
FEDSHARD_KIND(EvaluationReport, 7)
FEDSHARD_KIND(JobSummary, 8)
FEDSHARD_KIND(RankFailure, 9)
FEDSHARD_KIND(RankExited, 10)
FEDSHARD_KIND(Tick, 11)
FEDSHARD_KIND(NodeDisconnected, 12)
FEDSHARD_KIND(NodeLost, 13)
FEDSHARD_KIND(DeadlinesPassed, 14)
FEDSHARD_KIND(CheckpointReport, 15)
#undef FEDSHARD_KIND

// Makes an empty command of this kind; false when there is none.
template <size_t index = 0>
bool MakeCommand(uint8_t kind, Command& command) {
  if constexpr (index == std::variant_size_v<Command>) {
    return false;
  } else {
    using Alternative = std::variant_alternative_t<index, Command>;
    if (Kind<Alternative>::value != kind) return MakeCommand<index + 1>(kind, command);
    command.emplace<Alternative>();
    return true;
  }
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("journal record: ", what));
}

}  // namespace

Record EncodeRecord(const Command& command, Instant time) {
  Record record;
  record.bytes.assign(kMagic, sizeof(kMagic));
  Writer writer(record.bytes);
  std::visit(
      [&](const auto& c) {
        record.bytes.push_back(static_cast<char>(Kind<std::decay_t<decltype(c)>>::value));
        writer(time.steady_us);
        writer(time.wall_us);
        Fields(writer, c);
      },
      command);
  writer(Fnv1a(record.bytes.data(), record.bytes.size()));
  return record;
}

absl::StatusOr<DecodedRecord> DecodeRecord(const std::string& bytes) {
  const size_t header = sizeof(kMagic) + 1;
  if (bytes.size() < header + kChecksumBytes) return Damaged("too short");
  if (bytes.compare(0, sizeof(kMagic), kMagic, sizeof(kMagic)) != 0) {
    return Damaged("unknown format or version");
  }
  const size_t body = bytes.size() - kChecksumBytes;
  uint64_t checksum = 0;
  Reader(bytes.data() + body, kChecksumBytes)(checksum);
  if (checksum != Fnv1a(bytes.data(), body)) return Damaged("wrong checksum");

  DecodedRecord record;
  const uint8_t kind = static_cast<uint8_t>(bytes[sizeof(kMagic)]);
  if (!MakeCommand(kind, record.command)) {
    return Damaged(absl::StrCat("unknown kind ", static_cast<int>(kind)));
  }
  Reader reader(bytes.data() + header, body - header);
  reader(record.time.steady_us);
  reader(record.time.wall_us);
  std::visit([&reader](auto& c) { Fields(reader, c); }, record.command);
  if (!reader.ok() || reader.left() != 0) return Damaged("fields do not fit the length");
  return record;
}

}  // namespace fedshard::core
