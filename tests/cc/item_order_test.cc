// ItemOrder: a permutation that differs from epoch to epoch.

#include "tf_syncrep/cc/lib/item_order.h"

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

std::vector<int64_t> All(int64_t size, uint64_t seed, int64_t epoch) {
  const ItemOrder order(size, seed, epoch);
  std::vector<int64_t> items;
  for (int64_t i = 0; i < size; ++i) {
    items.push_back(order.At(i));
  }
  return items;
}

TEST(ItemOrderTest, HasEachItemOnce) {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    std::vector<bool> seen(size, false);
    for (const int64_t item : All(size, 7, 0)) {
      ASSERT_GE(item, 0);
      ASSERT_LT(item, size);
      EXPECT_FALSE(seen[item]) << item << " of " << size;
      seen[item] = true;
    }
  }
}

TEST(ItemOrderTest, IsTheSameForTheSameSeedAndEpochAlone) {
  EXPECT_EQ(All(100, 1, 2), All(100, 1, 2));
  EXPECT_NE(All(100, 1, 2), All(100, 1, 3));
  EXPECT_NE(All(100, 1, 2), All(100, 2, 2));
  EXPECT_NE(All(100, 1, 2), All(100, 2, 1));
}

TEST(ItemOrderTest, PutsEachItemAnywhere) {
  // Of 10 items over 10,000 epochs each must be first about 1,000 times, and
  // must be followed by each other item equally often, within five standard
  // deviations.
  constexpr int kEpochs = 10000;
  std::vector<int> first(10, 0);
  std::vector<int> pairs(100, 0);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const ItemOrder order(10, 3, epoch);
    ++first[order.At(0)];
    ++pairs[order.At(4) * 10 + order.At(5)];
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_LT(std::abs(first[i] - kEpochs / 10), 150);
    for (int j = 0; j < 10; ++j) {
      const int expected = i == j ? 0 : kEpochs / 90;
      EXPECT_LE(std::abs(pairs[i * 10 + j] - expected), i == j ? 0 : 53);
    }
  }
}

TEST(ItemOrderTest, TakesNoMemoryForHugeSizes) {
  const int64_t size = int64_t{1} << 62;
  const ItemOrder order(size, 5, 0);
  for (const int64_t position : {int64_t{0}, size / 3, size - 1}) {
    EXPECT_GE(order.At(position), 0);
    EXPECT_LT(order.At(position), size);
  }
}

}  // namespace
}  // namespace tf_syncrep
