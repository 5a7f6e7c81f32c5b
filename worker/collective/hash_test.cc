// Fingerprint64 sees every bit and every length, and never changes: values of recorded rounds stay
// comparable.
#include "worker/collective/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace fedshard::collective {
namespace {

TEST(Fingerprint64, EveryFlippedBitChangesIt) {
  std::vector<unsigned char> data(77);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 31);
  std::set<uint64_t> seen = {Fingerprint64(data.data(), data.size())};
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= 1u << (bit % 8);
    EXPECT_TRUE(seen.insert(Fingerprint64(data.data(), data.size())).second) << bit;
    data[bit / 8] ^= 1u << (bit % 8);
  }
}

TEST(Fingerprint64, LengthSeedAndOrderMatter) {
  const std::vector<unsigned char> zeros(100);
  std::set<uint64_t> seen;
  for (size_t n = 0; n <= zeros.size(); ++n) seen.insert(Fingerprint64(zeros.data(), n));
  EXPECT_EQ(seen.size(), zeros.size() + 1);
  EXPECT_NE(Fingerprint64(zeros.data(), 8, 1), Fingerprint64(zeros.data(), 8, 2));
  const uint64_t forward[] = {1, 2, 3, 4, 5, 6, 7, 8}, swapped[] = {2, 1, 3, 4, 5, 6, 7, 8};
  EXPECT_NE(Fingerprint64(forward, sizeof forward), Fingerprint64(swapped, sizeof swapped));
}

TEST(Fingerprint64, ValuesAreFrozen) {
  EXPECT_EQ(Fingerprint64("", 0), 0xfe508dee8990bdf3u);
  const char text[] = "federation groups average their shards, all of them or none";
  EXPECT_EQ(Fingerprint64(text, sizeof text - 1), 0x75092e2751a1caacu);
}

}  // namespace
}  // namespace fedshard::collective
