// Proves that the inbox is bounded for users and not for streams, and that nothing enters after it
// is closed.
#include "coordinator/service/inbox.h"

#include <gtest/gtest.h>

#include <string>

namespace fedshard::service {
namespace {

TEST(InboxTest, UsersAreRefusedWhenItIsFullAndStreamsAreNot) {
  Inbox inbox(2);
  EXPECT_TRUE(inbox.TryPost([] {}));
  EXPECT_TRUE(inbox.TryPost([] {}));
  EXPECT_FALSE(inbox.TryPost([] {}));
  EXPECT_TRUE(inbox.Post([] {}));
  EXPECT_EQ(inbox.Take(0).size(), 3u);
  EXPECT_TRUE(inbox.TryPost([] {}));
}

TEST(InboxTest, KeepsTheOrder) {
  Inbox inbox(10);
  std::string seen;
  for (const char c : {'a', 'b', 'c'}) inbox.TryPost([&seen, c] { seen += c; });
  for (Inbox::Task& task : inbox.Take(0)) task();
  EXPECT_EQ(seen, "abc");
}

TEST(InboxTest, WhatWasQueuedBeforeTheCloseCanBeTaken) {
  Inbox inbox(10);
  inbox.Post([] {});
  inbox.Close();
  EXPECT_FALSE(inbox.Post([] {}));
  EXPECT_FALSE(inbox.TryPost([] {}));
  EXPECT_EQ(inbox.Take(std::nullopt).size(), 1u);
  EXPECT_TRUE(inbox.Take(std::nullopt).empty());
  EXPECT_TRUE(inbox.closed());
}

}  // namespace
}  // namespace fedshard::service
