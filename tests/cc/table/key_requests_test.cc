// KeyRequests: each key is requested once, from its owner, on any number of
// threads.

#include "tf_syncrep/cc/lib/table/key_requests.h"

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/table/key_hash.h"

namespace tf_syncrep {
namespace {

class KeyRequestsTest : public testing::TestWithParam<int> {};

TEST_P(KeyRequestsTest, HaveEachKeyOnceAtItsOwner) {
  std::mt19937_64 random(GetParam());
  const int64_t num_tables = 1 + static_cast<int64_t>(random() % 4);
  const int64_t num_parts = 1 + static_cast<int64_t>(random() % 5);
  const int64_t num_features = 1 + static_cast<int64_t>(random() % 5);
  std::vector<std::vector<int32_t>> narrow(num_features);
  std::vector<std::vector<int64_t>> wide(num_features);
  std::vector<FeatureKeys> features;
  for (int64_t f = 0; f < num_features; ++f) {
    const auto size =
        static_cast<int64_t>(random() % (GetParam() == 0 ? 300000 : 50));
    const bool is_narrow = random() % 2 == 0;
    for (int64_t i = 0; i < size; ++i) {
      const auto key = static_cast<int64_t>(random());
      narrow[f].push_back(static_cast<int32_t>(key % 100));
      wide[f].push_back(random() % 4 == 0 ? key : key % 100);
    }
    features.push_back({is_narrow ? narrow[f].data() : nullptr,
                        is_narrow ? nullptr : wide[f].data(), size,
                        static_cast<int32_t>(random() % num_tables)});
    if (is_narrow) {
      wide[f].assign(narrow[f].begin(), narrow[f].end());
    }
  }
  const KeyOwner owner(num_parts);
  std::vector<std::vector<int64_t>> requests[2];
  for (int t = 0; t < 2; ++t) {
    ThreadSharder sharder(t == 0 ? 1 : 3);
    KeyRequests found;
    ASSERT_TRUE(found.Find(features, num_tables, num_parts, sharder));
    std::vector<std::tuple<int64_t, int64_t, int64_t>> keys;
    for (int64_t part = 0; part < num_parts; ++part) {
      std::vector<int64_t> request(found.request_size(part));
      found.WriteRequest(part, request.data());
      int64_t next = num_tables;
      for (int64_t table = 0; table < num_tables; ++table) {
        for (int64_t i = 0; i < request[table]; ++i) {
          ASSERT_EQ(owner(HashKey(request[next])), part);
          keys.emplace_back(part, table, request[next++]);
        }
      }
      ASSERT_EQ(next, found.request_size(part));
      requests[t].push_back(std::move(request));
    }
    const std::set<std::tuple<int64_t, int64_t, int64_t>> different(
        keys.begin(), keys.end());
    ASSERT_EQ(different.size(), keys.size());
    std::set<std::tuple<int64_t, int64_t, int64_t>> named;
    for (int64_t f = 0; f < num_features; ++f) {
      std::vector<int32_t> places(wide[f].size());
      found.WritePlaces(f, places.data());
      for (size_t i = 0; i < places.size(); ++i) {
        const auto expected = std::make_tuple(
            owner(HashKey(wide[f][i])), int64_t{features[f].table}, wide[f][i]);
        ASSERT_EQ(keys[places[i]], expected);
        named.insert(expected);
      }
    }
    ASSERT_EQ(named, different);
  }
  EXPECT_EQ(requests[0], requests[1]);
}

TEST(KeyRequestsOfTablesTest, AKeyOfTwoTablesIsAskedForInEach) {
  const int64_t key = 7;
  ThreadSharder sharder(1);
  KeyRequests found;
  ASSERT_TRUE(found.Find({{nullptr, &key, 1, 0}, {nullptr, &key, 1, 1}},
                         /*num_tables=*/2, /*num_parts=*/1, sharder));
  std::vector<int64_t> request(found.request_size(0));
  found.WriteRequest(0, request.data());
  EXPECT_EQ(request, (std::vector<int64_t>{1, 1, key, key}));
}

TEST(KeyOwnerTest, IsTheHashModuloTheNumberOfParts) {
  std::mt19937_64 random(1);
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (const int64_t parts : {1, 2, 3, 7, 64, 1000, 0x7fffffff}) {
    const auto num = static_cast<uint64_t>(parts);
    const KeyOwner owner(parts);
    std::vector<uint64_t> hashes = {0, kMax};
    for (int i = 0; i < 1000; ++i) {
      const uint64_t multiple = random() / num * num;
      hashes.insert(hashes.end(), {random(), multiple, multiple - 1});
    }
    for (const uint64_t hash : hashes) {
      ASSERT_EQ(owner(hash), static_cast<int64_t>(hash % num)) << hash;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, KeyRequestsTest, testing::Range(0, 20));

}  // namespace
}  // namespace tf_syncrep
