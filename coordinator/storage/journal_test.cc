// The memory journal keeps records in order, refuses use after Close and says so when its bound
// cost it records; the faulty journal fails exactly when told, in both ways.
#include "coordinator/storage/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/storage/faulty_journal.h"
#include "coordinator/storage/memory_journal.h"

namespace fedshard::storage {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Contents(Journal& journal) {
  std::vector<std::string> contents;
  const auto records = journal.ReadAll();
  EXPECT_TRUE(records.ok()) << records.status();
  if (!records.ok()) return contents;
  for (const core::Record& record : *records) contents.push_back(record.bytes);
  return contents;
}

TEST(MemoryJournal, KeepsRecordsInOrder) {
  MemoryJournal journal;
  EXPECT_TRUE(journal.Append({{"a"}, {std::string("b\0c", 3)}}).ok());
  EXPECT_TRUE(journal.Append({}).ok());
  EXPECT_TRUE(journal.Append({{"d"}}).ok());
  EXPECT_THAT(Contents(journal), ElementsAre("a", std::string("b\0c", 3), "d"));
}

TEST(MemoryJournal, RefusesUseAfterClose) {
  MemoryJournal journal;
  EXPECT_TRUE(journal.Close().ok());
  EXPECT_TRUE(journal.Close().ok());
  EXPECT_EQ(journal.Append({{"a"}}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(journal.ReadAll().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(MemoryJournal, SaysThatItsBoundCostRecords) {
  MemoryJournal journal(/*max_bytes=*/4);
  EXPECT_TRUE(journal.Append({{"aa"}, {"bb"}}).ok());
  EXPECT_THAT(Contents(journal), ElementsAre("aa", "bb"));
  EXPECT_TRUE(journal.Append({{"c"}}).ok());
  EXPECT_EQ(journal.ReadAll().status().code(), absl::StatusCode::kDataLoss);
}

TEST(FaultyJournal, FailsFromTheGivenAppendOnUntilHealed) {
  MemoryJournal memory;
  FaultyJournal journal(memory);
  journal.FailAppends(1, absl::UnavailableError("disk full"), AppendFault::kNothingWritten);
  EXPECT_TRUE(journal.Append({{"a"}}).ok());
  EXPECT_EQ(journal.Append({{"b"}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(journal.Append({{"c"}}).code(), absl::StatusCode::kUnavailable);
  journal.Heal();
  EXPECT_TRUE(journal.Append({{"d"}}).ok());
  EXPECT_EQ(journal.appends(), 2);
  EXPECT_THAT(Contents(journal), ElementsAre("a", "d"));
}

TEST(FaultyJournal, CanLoseTheAnswerAlone) {
  MemoryJournal memory;
  FaultyJournal journal(memory);
  journal.FailAppends(0, absl::UnavailableError("timeout"), AppendFault::kWrittenAnyway);
  EXPECT_FALSE(journal.Append({{"a"}}).ok());
  EXPECT_THAT(Contents(journal), ElementsAre("a"));
}

}  // namespace
}  // namespace fedshard::storage
