// GroupRows: all occurrences, in order, each row in one shard.

#include "tf_syncrep/cc/lib/rows/row_groups.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

// Row -> positions, read back from the linked lists of all shards.
std::map<int64_t, std::vector<int64_t>> Positions(
    const std::vector<int64_t>& rows, int64_t num_shards) {
  std::map<int64_t, std::vector<int64_t>> positions;
  std::vector<int64_t> next(rows.size(), -1);
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    for (const RowGroup& group :
         GroupRows(rows.data(), rows.size(), shard, num_shards, next.data())) {
      EXPECT_EQ(positions.count(group.row), 0u) << "row in two groups";
      auto& list = positions[group.row];
      list.push_back(group.first);
      while (list.back() != group.last) {
        list.push_back(next[list.back()]);
      }
    }
  }
  return positions;
}

std::map<int64_t, std::vector<int64_t>> ExpectedPositions(
    const std::vector<int64_t>& rows) {
  std::map<int64_t, std::vector<int64_t>> positions;
  for (size_t i = 0; i < rows.size(); ++i) {
    positions[rows[i]].push_back(static_cast<int64_t>(i));
  }
  return positions;
}

TEST(RowGroupsTest, FindsAllOccurrencesInOrder) {
  std::mt19937_64 random(1);
  for (const int64_t num_rows : {0, 1, 2, 17, 1000, 5000}) {
    for (const int64_t range : {1, 3, 100, 1000000}) {
      std::vector<int64_t> rows(num_rows);
      for (int64_t& row : rows) {
        row = static_cast<int64_t>(random() % range);
      }
      for (const int64_t num_shards : {1, 2, 7, 64}) {
        EXPECT_EQ(Positions(rows, num_shards), ExpectedPositions(rows));
      }
    }
  }
}

TEST(RowGroupsTest, GroupsComeInOrderOfFirstOccurrence) {
  const std::vector<int64_t> rows = {5, 3, 5, 9, 3, 0};
  std::vector<int64_t> next(rows.size());
  const std::vector<RowGroup> groups =
      GroupRows(rows.data(), rows.size(), 0, 1, next.data());
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].row, 5);
  EXPECT_EQ(groups[1].row, 3);
  EXPECT_EQ(groups[2].row, 9);
  EXPECT_EQ(groups[3].row, 0);
}

TEST(RowGroupsTest, KnowsRowsThatAreGroupedAlready) {
  const auto are_grouped = [](const std::vector<int64_t>& rows) {
    return AreDistinctAndAscending(rows.data(),
                                   static_cast<int64_t>(rows.size()));
  };
  EXPECT_TRUE(are_grouped({}));
  EXPECT_TRUE(are_grouped({7}));
  EXPECT_TRUE(are_grouped({-1, 0, 1, 5}));
  EXPECT_FALSE(are_grouped({0, 1, 1}));
  EXPECT_FALSE(are_grouped({0, 2, 1}));
}

TEST(RowGroupsTest, SpreadsStridedRowsOverShards) {
  // Rows that are multiples of a large power of two are common: one feature's
  // hash bucket, or one replica's share of a table.
  std::vector<int64_t> rows(4096);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<int64_t>(i) << 20;
  }
  std::vector<int64_t> next(rows.size());
  for (int64_t shard = 0; shard < 4; ++shard) {
    const size_t size =
        GroupRows(rows.data(), rows.size(), shard, 4, next.data()).size();
    EXPECT_GT(size, 850u);
    EXPECT_LT(size, 1200u);
  }
}

}  // namespace
}  // namespace tf_syncrep
