// The protocol between ranks: complete checkpoints alone are listed, whatever fails, and failures
// are reported with their path; old ones go as `keep` says, leftovers go, and nothing else does.
#include "worker/checkpoint/writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/testing/fake_state.h"

// AddressSanitizer calls this; without it, it would stop the test that asks for too much memory.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace fedshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using fedshard::testing::IsOk;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StateOptions;
using testing::WriteAll;

class Writer : public ::testing::Test {
 protected:
  std::vector<std::string> Names() const { return NamesIn(dir_.path()).value(); }
  std::string Path(int64_t step) const { return dir_.path() + "/" + CheckpointName(step); }
  WriteResult Write(int64_t step, const std::string& attempt = "a1", int64_t keep = 0) {
    state_.step = step;
    return WriteAll(dir_.path(), state_, [&](WriterOptions& options) {
      options.attempt = attempt;
      options.keep = keep;
    });
  }
  void ExpectGood(int64_t step) const {
    const auto reader = CheckpointReader::Open(Path(step));
    ASSERT_THAT(reader, IsOk());
    EXPECT_THAT((*reader)->Verify(), IsOk());
    EXPECT_THAT(testing::CheckAs(**reader, state_, state_.mesh), IsOk());
  }

  fedshard::testing::TempDir dir_;
  StateOptions state_;
};

TEST_F(Writer, LeavesACompleteFolderAndNothingElse) {
  state_.mesh = {2, 1, 2};
  const WriteResult result = Write(400);
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.step, 400);
  EXPECT_EQ(result.path, Path(400));
  EXPECT_GT(result.seconds, 0);
  EXPECT_THAT(Names(), ElementsAre("step-00000400"));
  EXPECT_THAT(
      NamesIn(result.path).value(),
      ElementsAre("group-0-shard-0.safetensors", "group-0-shard-1.safetensors",
                  "group-1-shard-0.safetensors", "group-1-shard-1.safetensors", "manifest.json"));
  int64_t bytes = 0;
  const auto reader = CheckpointReader::Open(result.path);
  ASSERT_THAT(reader, IsOk());
  for (const ManifestFile& file : (*reader)->manifest().files) bytes += file.bytes;
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_FALSE((*reader)->manifest().created.empty());
  EXPECT_FALSE((*reader)->manifest().version.empty());
  EXPECT_EQ((*reader)->manifest().model_seed, 0xffff'ffff'ffff'fff0u);
  EXPECT_EQ((*reader)->manifest().optimizer_steps, 399);
}

TEST_F(Writer, StartCopies) {
  std::vector<std::vector<char>> memory;
  std::vector<WriteResult> results;
  CheckpointWriter writer(testing::OptionsFor(dir_.path(), {}, 0, 0),
                          [&](const WriteResult& result) { results.push_back(result); });
  for (const int64_t step : {1, 2, 3}) {
    memory.clear();
    state_.step = step;
    state_.salt = step;
    writer.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
    for (auto& values : memory) std::fill(values.begin(), values.end(), '\x7f');
  }
  writer.Wait();
  ASSERT_EQ(results.size(), 3u);
  for (const int64_t step : {1, 2, 3}) {
    EXPECT_EQ(results[step - 1].error, "");
    state_.salt = step;
    ExpectGood(step);
  }
}

// Ranks that store nothing (replicas) may lead.
TEST_F(Writer, LeaderNeedsNoFileOfItsOwn) {
  StateOptions state;
  std::vector<std::vector<char>> memory;
  WriterOptions options = testing::OptionsFor(dir_.path(), {}, 0, 0);
  options.leader = false;
  WriterOptions leader = options;
  leader.leader = true;
  leader.file_stem = "";
  WriteResult outcome;
  {
    CheckpointWriter leads(leader, [&](const WriteResult& result) { outcome = result; });
    leads.Start(testing::ManifestFor(state), {});
    CheckpointWriter stores(options, [](const WriteResult& r) { ADD_FAILURE() << r.error; });
    stores.Start(testing::ManifestFor(state), testing::TensorsOf(state, 0, 0, memory));
  }
  EXPECT_EQ(outcome.error, "");
  ExpectGood(400);
}

TEST_F(Writer, ReplicasLeaveNothing) {
  WriterOptions options = testing::OptionsFor(dir_.path(), {}, 0, 0);
  options.leader = false;
  options.file_stem = "";
  {
    CheckpointWriter replica(options, [](const WriteResult& r) { ADD_FAILURE() << r.error; });
    replica.Start(testing::ManifestFor(state_), {});
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(Writer, KeepsTheNewest) {
  for (const int64_t step : {100, 200, 300, 400}) ASSERT_EQ(Write(step, "a1", 2).error, "");
  EXPECT_THAT(Names(), ElementsAre("step-00000300", "step-00000400"));
  ASSERT_EQ(Write(500, "a1", 0).error, "");
  EXPECT_EQ(Names().size(), 3u);
  ASSERT_EQ(Write(600, "a1", 1).error, "");
  EXPECT_THAT(Names(), ElementsAre("step-00000600"));
}

// A job that went back to an older checkpoint keeps what it writes, and what it left behind.
TEST_F(Writer, NeverDeletesWhatItJustWrote) {
  for (const int64_t step : {300, 400}) ASSERT_EQ(Write(step).error, "");
  ASSERT_EQ(Write(200, "a2", 1).error, "");
  EXPECT_THAT(Names(), ElementsAre("step-00000200", "step-00000300", "step-00000400"));
}

TEST_F(Writer, LeavesStrangersAlone) {
  fs::create_directories(dir_.path() + "/notes");
  fs::create_directories(Path(50));  // No manifest.
  std::ofstream(dir_.path() + "/step-00000060") << "a file";
  fs::create_directories(Path(70));
  std::ofstream(Path(70) + "/manifest.json") << "garbled";
  ASSERT_EQ(Write(100).error, "");
  ASSERT_EQ(Write(200, "a1", 1).error, "");
  EXPECT_THAT(Names(), ElementsAre("notes", "step-00000050", "step-00000060", "step-00000070",
                                   "step-00000200"));
}

TEST_F(Writer, AnotherJobsCheckpointsStay) {
  ASSERT_EQ(Write(100).error, "");
  ASSERT_EQ(Write(200).error, "");
  std::vector<std::vector<char>> memory;
  WriteResult outcome;
  const auto write = [&](int64_t step) {
    state_.step = step;
    Manifest manifest = testing::ManifestFor(state_);
    manifest.job = "other";
    WriterOptions options = testing::OptionsFor(dir_.path(), {}, 0, 0);
    options.keep = 1;
    CheckpointWriter writer(options, [&](const WriteResult& result) { outcome = result; });
    writer.Start(manifest, testing::TensorsOf(state_, 0, 0, memory));
  };
  write(300);
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(Names().size(), 3u);
  write(200);
  EXPECT_THAT(outcome.error, AllOf(HasSubstr(Path(200)), HasSubstr("of job \"fake\"")));
  EXPECT_THAT(Names(), ElementsAre("step-00000100", "step-00000200", "step-00000300"));
  ExpectGood(200);
}

TEST_F(Writer, ReplacesTheSameStep) {
  state_.mesh = {1, 1, 3};
  ASSERT_EQ(Write(400).error, "");
  state_.mesh = {1, 1, 2};
  state_.salt = 5;
  ASSERT_EQ(Write(400, "a2").error, "");
  EXPECT_THAT(Names(), ElementsAre("step-00000400"));
  EXPECT_EQ(NamesIn(Path(400)).value().size(), 3u);
  ExpectGood(400);
}

// Also those whose attempt had the same name: their files could be taken for those of this life.
TEST_F(Writer, RemovesLeftoversOfFormerLives) {
  ASSERT_EQ(Write(100, "a1").error, "");
  ASSERT_EQ(Write(200, "a1").error, "");
  for (const char* attempt : {"a1", "a2"}) {
    fs::create_directories(Path(300) + ".partial-" + attempt);
    std::ofstream(Path(300) + ".partial-" + attempt + "/group-0-shard-0.safetensors") << "half";
  }
  fs::create_directories(Path(100) + ".deleted-a0");
  fs::rename(Path(200), Path(200) + ".replaced-a1");  // Its successor never came.
  fs::create_directories(Path(100) + ".replaced-a1");
  { const CheckpointWriter leader(testing::OptionsFor(dir_.path(), {}, 0, 0), nullptr); }
  EXPECT_THAT(Names(), ElementsAre("step-00000100", "step-00000200"));
  ASSERT_EQ(Write(300, "a2").error, "");
  EXPECT_THAT(Names(), ElementsAre("step-00000100", "step-00000200", "step-00000300"));
}

// A rank's file of a former life with the same attempt and step, complete with its description.
TEST_F(Writer, TakesNoFileOfAFormerLife) {
  state_.mesh = {1, 1, 2};
  state_.step = 400;
  state_.salt = 1;
  const auto options = [&](int32_t shard) {
    WriterOptions o = testing::OptionsFor(dir_.path(), state_.mesh, 0, shard);
    o.deadline_ms = 50;
    return o;
  };
  std::vector<std::vector<char>> memory;
  {
    CheckpointWriter dead(options(1), [](const WriteResult& r) { ADD_FAILURE() << r.error; });
    dead.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 1, memory));
  }
  ASSERT_TRUE(fs::exists(Path(400) + ".partial-a1/group-0-shard-1.safetensors.json"));
  WriteResult outcome;
  {
    CheckpointWriter leader(options(0), [&](const WriteResult& result) { outcome = result; });
    leader.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
  }
  EXPECT_THAT(outcome.error, HasSubstr("not written within 50 ms: group-0-shard-1.safetensors"));
}

// What this life left behind for earlier steps goes with the next checkpoint that succeeds.
TEST_F(Writer, RemovesItsOwnLeftovers) {
  std::vector<std::vector<char>> memory;
  CheckpointWriter writer(testing::OptionsFor(dir_.path(), {}, 0, 0),
                          [](const WriteResult& result) { EXPECT_EQ(result.error, ""); });
  fs::create_directories(Path(300) + ".partial-a1");  // Of a rank that was too late.
  fs::create_directories(Path(500) + ".partial-a1");  // Of one that is faster than the leader.
  writer.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
  writer.Wait();
  EXPECT_THAT(Names(), ElementsAre("step-00000400", "step-00000500.partial-a1"));
}

// A rank that died in the middle and came back in the same attempt.
TEST_F(Writer, StartsItsOwnFileAfresh) {
  std::vector<std::vector<char>> memory;
  {
    CheckpointWriter writer(testing::OptionsFor(dir_.path(), {}, 0, 0),
                            [](const WriteResult& result) { EXPECT_EQ(result.error, ""); });
    const std::string partial = Path(400) + ".partial-a1";
    fs::create_directories(partial);
    for (const char* name : {"group-0-shard-0.safetensors", "group-0-shard-0.safetensors.tmp",
                             "group-0-shard-0.safetensors.failed"}) {
      std::ofstream(partial + "/" + name) << "of a former life";
    }
    writer.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
  }
  ExpectGood(400);
}

TEST_F(Writer, LeaderGivesUpAtItsDeadline) {
  WriterOptions options = testing::OptionsFor(dir_.path(), {1, 1, 2}, 0, 0);
  options.deadline_ms = 50;
  state_.mesh = {1, 1, 2};
  std::vector<std::vector<char>> memory;
  WriteResult outcome;
  {
    CheckpointWriter writer(options, [&](const WriteResult& result) { outcome = result; });
    writer.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
  }
  EXPECT_THAT(outcome.error,
              AllOf(HasSubstr("step-00000400.partial-a1"), HasSubstr("not written within 50 ms"),
                    HasSubstr("group-0-shard-1.safetensors")));
  EXPECT_THAT(Names(), IsEmpty());
}

// The failure of a rank reaches the leader long before its deadline.
TEST_F(Writer, AFailedRankFailsTheCheckpoint) {
  ASSERT_EQ(Write(300).error, "");
  state_.mesh = {1, 1, 2};
  state_.step = 400;
  std::vector<std::vector<char>> memory;
  WriteResult outcome;
  std::string own_error;
  {
    CheckpointWriter leader(testing::OptionsFor(dir_.path(), {1, 1, 2}, 0, 0),
                            [&](const WriteResult& result) { outcome = result; });
    leader.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
    CheckpointWriter other(testing::OptionsFor(dir_.path(), {1, 1, 2}, 0, 1),
                           [&](const WriteResult& result) { own_error = result.error; });
    auto tensors = testing::TensorsOf(state_, 0, 1, memory);
    tensors[1].description.name = tensors[0].description.name;  // No file can hold this.
    other.Start(testing::ManifestFor(state_), tensors);
  }
  EXPECT_THAT(own_error, AllOf(HasSubstr("group-0-shard-1.safetensors"), HasSubstr("is taken")));
  EXPECT_EQ(outcome.error, own_error);
  EXPECT_THAT(Names(), ElementsAre("step-00000300"));
}

// Two ranks that store the same elements: each file is whole, the checkpoint is not one.
TEST_F(Writer, NothingIsPublishedThatNobodyCanRead) {
  state_.mesh = {1, 1, 2};
  std::vector<std::vector<char>> memory;
  WriteResult outcome;
  {
    CheckpointWriter leader(testing::OptionsFor(dir_.path(), {1, 1, 2}, 0, 0),
                            [&](const WriteResult& result) { outcome = result; });
    leader.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
    CheckpointWriter other(testing::OptionsFor(dir_.path(), {1, 1, 2}, 0, 1),
                           [](const WriteResult&) {});
    other.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 0, memory));
  }
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("manifest.json"), HasSubstr("is stored twice")));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(Writer, DirectoryThatCannotBe) {
  std::ofstream(dir_.path() + "/file") << "";
  const WriteResult result = WriteAll(dir_.path() + "/file/checkpoints", state_);
  EXPECT_THAT(result.error, AllOf(HasSubstr(dir_.path() + "/file"), HasSubstr("ENOTDIR")));
}

TEST_F(Writer, NoMemoryForACopy) {
  const char byte = 0;
  WriteResult outcome;
  {
    CheckpointWriter writer(testing::OptionsFor(dir_.path(), {}, 0, 0),
                            [&](const WriteResult& result) { outcome = result; });
    // More than any address space has.
    const FlatTensor tensor{"t", "parameters", 0, "F32", int64_t{1} << 55, {}};
    writer.Start(testing::ManifestFor(state_), {{tensor, &byte}});
  }
  EXPECT_THAT(outcome.error, HasSubstr("group-0-shard-0.safetensors: no memory for a copy"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(Writer, AttemptsAreNames) {
  for (const char* attempt : {"", "../a", "a/b", "a.b"}) {
    EXPECT_THAT(Write(400, attempt).error, HasSubstr("checkpoint attempt")) << attempt;
    EXPECT_THAT(Names(), IsEmpty());
  }
}

// A disk that takes only part of a file: the size limit of files stands in for a full disk.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    former_handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &former_);
    rlimit limit = former_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    setrlimit(RLIMIT_FSIZE, &former_);
    signal(SIGXFSZ, former_handler_);
  }

 private:
  rlimit former_{};
  sighandler_t former_handler_;
};

TEST_F(Writer, FullDisk) {
  ASSERT_EQ(Write(300).error, "");
  // Nothing at all, in the header, in the data, in the description or manifest.
  const auto size = fs::file_size(Path(300) + "/group-0-shard-0.safetensors");
  for (const uintmax_t limit : {uintmax_t{0}, uintmax_t{100}, size / 2, size - 1}) {
    WriteResult result;
    {
      const SizeLimit full(limit);
      result = Write(400);
    }
    EXPECT_THAT(result.error, AllOf(HasSubstr("step-00000400.partial-a1/group-0-shard-0"),
                                    HasSubstr("File too large")))
        << limit;
    EXPECT_THAT(Names(), ElementsAre("step-00000300")) << limit;
  }
  ASSERT_EQ(Write(400).error, "");
  ExpectGood(400);
}

// A disk so full that not even the reason fits: the leader learns of the failure all the same.
TEST_F(Writer, FullDiskOfAnotherRank) {
  state_.mesh = {1, 1, 2};
  std::vector<std::vector<char>> memory;
  WriteResult outcome;
  std::string own_error;
  WriterOptions options = testing::OptionsFor(dir_.path(), state_.mesh, 0, 0);
  options.file_stem = "";
  options.all_stems = {"group-0-shard-1"};
  {
    CheckpointWriter leader(options, [&](const WriteResult& result) { outcome = result; });
    const SizeLimit full(0);
    CheckpointWriter other(testing::OptionsFor(dir_.path(), state_.mesh, 0, 1),
                           [&](const WriteResult& result) { own_error = result.error; });
    other.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 1, memory));
    other.Wait();
    leader.Start(testing::ManifestFor(state_), {});
  }
  EXPECT_THAT(own_error, HasSubstr("File too large"));
  EXPECT_THAT(outcome.error,
              HasSubstr("group-0-shard-1.safetensors: its writer failed without a reason"));
  EXPECT_THAT(Names(), IsEmpty());
}

// Training goes on while a checkpoint hangs; the ones meanwhile are skipped, the hanging one is not
// lost.
TEST_F(Writer, SkipsWhileTheFormerHangs) {
  state_.mesh = {1, 1, 2};
  std::vector<std::vector<char>> memory;
  std::vector<WriteResult> outcomes;
  {
    WriterOptions options = testing::OptionsFor(dir_.path(), state_.mesh, 0, 0);
    options.hold_up_ms = 0;
    CheckpointWriter leader(options, [&](const WriteResult& r) { outcomes.push_back(r); });
    const auto tensors = testing::TensorsOf(state_, 0, 0, memory);
    for (const int64_t step : {400, 401, 402}) {  // The other rank's part of 400 is still to come.
      state_.step = step;
      leader.Start(testing::ManifestFor(state_), tensors);
    }
    state_.step = 400;
    CheckpointWriter other(testing::OptionsFor(dir_.path(), state_.mesh, 0, 1),
                           [](const WriteResult& r) { ADD_FAILURE() << r.error; });
    other.Start(testing::ManifestFor(state_), testing::TensorsOf(state_, 0, 1, memory));
  }
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_EQ(outcomes[1].step, 401);
  EXPECT_THAT(outcomes[1].error,
              AllOf(HasSubstr(Path(401)), HasSubstr("skipped: that of step 400 took too long")));
  EXPECT_EQ(outcomes[2].step, 402);
  EXPECT_THAT(Names(), ElementsAre("step-00000400"));
  ExpectGood(400);
}

// A rank whose disk hangs tells the leader which parts will not come. A pipe stands in for the
// disk: whoever opens it to write waits for a reader.
TEST_F(Writer, ARankThatSkipsTellsTheLeader) {
  state_.mesh = {1, 1, 2};
  std::vector<std::vector<char>> memory;
  const std::string name = "/group-0-shard-1.safetensors";
  const std::string pipe = Path(400) + ".partial-a1" + name + ".tmp";
  fs::create_directories(Path(400) + ".partial-a1");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::vector<std::string> errors;
  int reader = -1;
  {
    WriterOptions options = testing::OptionsFor(dir_.path(), state_.mesh, 0, 1);
    options.hold_up_ms = 0;
    CheckpointWriter other(options, [&](const WriteResult& r) { errors.push_back(r.error); });
    const auto tensors = testing::TensorsOf(state_, 0, 1, memory);
    for (const int64_t step : {400, 401}) {
      state_.step = step;
      other.Start(testing::ManifestFor(state_), tensors);
    }
    reader = open(pipe.c_str(), O_RDONLY);
  }
  close(reader);
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_THAT(errors[0], HasSubstr("is not a regular file"));
  EXPECT_THAT(errors[1], HasSubstr("skipped"));
  EXPECT_EQ(*ReadWholeFile(Path(401) + ".partial-a1" + name + ".failed", 1000), errors[1]);
}

TEST_F(Writer, FullDiskAtTheManifest) {
  const SizeLimit full(1000);
  state_.moments = {};
  std::vector<std::vector<char>> memory;
  const std::vector<char> bytes(16);
  WriteResult outcome;
  {
    CheckpointWriter writer(testing::OptionsFor(dir_.path(), {}, 0, 0),
                            [&](const WriteResult& result) { outcome = result; });
    FlatTensor tensor{"parameters.0", "parameters", 0, "F32", 4, {{"p", 0, 4, 0}}};
    Manifest manifest = testing::ManifestFor(state_);
    manifest.model_config = std::string(5000, 'x');
    writer.Start(manifest, {{tensor, bytes.data()}});
  }
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("manifest.json.tmp: write"), HasSubstr("EFBIG")));
  EXPECT_THAT(Names(), IsEmpty());
}

}  // namespace
}  // namespace fedshard::checkpoint
