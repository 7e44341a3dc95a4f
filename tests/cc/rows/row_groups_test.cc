// RowGroups: all positions of each row, in order.

#include "tf_syncrep/cc/lib/rows/row_groups.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

using Positions = std::map<int64_t, std::vector<int64_t>>;

// The positions in the groups of rows whose first occurrences are in each part.
Positions PositionsIn(const RowGroups& groups, int64_t num_parts) {
  Positions positions;
  const auto* const sorted = groups.sorted();
  int64_t last = -1;
  for (int64_t part = 0; part < num_parts; ++part) {
    ForEachRow(sorted, groups.size(),
               ShardBegin(part, num_parts, groups.size()),
               ShardBegin(part + 1, num_parts, groups.size()),
               [&](int64_t begin, int64_t end) {
                 const int64_t row = sorted[begin].row;
                 EXPECT_GT(row, last);
                 last = row;
                 for (int64_t i = begin; i < end; ++i) {
                   EXPECT_EQ(sorted[i].row, row);
                   positions[row].push_back(sorted[i].place);
                 }
               });
  }
  return positions;
}

template <typename Index>
class RowGroupsTest : public testing::Test {};
using Indices = testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(RowGroupsTest, Indices);

TYPED_TEST(RowGroupsTest, HaveAllPositionsOfEachRowInOrder) {
  std::mt19937_64 random(1);
  ThreadSharder sharder(3);
  for (const int64_t num_rows : {int64_t{1}, int64_t{7}, int64_t{1000},
                                 int64_t{1} << 31, RowGroups::kMax}) {
    for (const int64_t size : {0, 1, 2, 100, 3000, 20000}) {
      for (const bool ascends : {false, true}) {
        std::vector<TypeParam> indices;
        Positions expected;
        for (int64_t i = 0; i < size; ++i) {
          const int64_t most = std::min<int64_t>(
              num_rows, std::numeric_limits<TypeParam>::max());
          indices.push_back(static_cast<TypeParam>(random() % most));
        }
        if (ascends) {
          std::sort(indices.begin(), indices.end());
        }
        for (int64_t i = 0; i < size; ++i) {
          expected[indices[i]].push_back(i);
        }
        RowGroups groups;
        BadRow bad_row;
        ASSERT_EQ(groups.Find(indices.data(), size, num_rows,
                              RowGroups::BadRows::kRefused, sharder, &bad_row),
                  RowGroups::Status::kOk);
        EXPECT_EQ(groups.size(), size);
        for (const int64_t num_parts : {1, 2, 9}) {
          EXPECT_EQ(PositionsIn(groups, num_parts), expected);
        }
      }
    }
  }
}

TYPED_TEST(RowGroupsTest, FirstIndexThatIsNoRowIsNamed) {
  const std::vector<TypeParam> indices = {3, 9, 10, -1, 2};
  ThreadSharder sharder(1);
  RowGroups groups;
  BadRow bad_row;
  ASSERT_EQ(groups.Find(indices.data(), 5, 10, RowGroups::BadRows::kRefused,
                        sharder, &bad_row),
            RowGroups::Status::kBadRow);
  EXPECT_EQ(bad_row.position, 2);
  EXPECT_EQ(bad_row.row, 10);
}

TEST(RowGroupsTest, IndicesThatAreNoRowsCanBeLeftOut) {
  const RowGroups groups = GroupsOf({3, -1, 9, 10, 3, -7}, 10);
  EXPECT_EQ(groups.size(), 3);
  EXPECT_EQ(PositionsIn(groups, 1), (Positions{{3, {0, 4}}, {9, {2}}}));
  const RowGroups ascending = GroupsOf({-2, 1, 4, 10}, 10);
  EXPECT_EQ(PositionsIn(ascending, 1), (Positions{{1, {1}}, {4, {2}}}));
}

// ThreadSanitizer tells if they are read as memory that nobody else writes.
TYPED_TEST(RowGroupsTest, IndicesMayChangeMeanwhile) {
  constexpr int64_t kRows = 1000;
  std::vector<TypeParam> indices(20000);
  std::atomic<bool> ends{false};
  std::thread other([&] {
    for (TypeParam value = 0; !ends; value = kRows - 1 - value) {
      for (TypeParam& index : indices) {
        __atomic_store_n(&index, value - 1, __ATOMIC_RELAXED);
      }
    }
  });
  ThreadSharder sharder(1);
  for (int i = 0; i < 200; ++i) {
    RowGroups groups;
    BadRow bad_row;
    ASSERT_EQ(
        groups.Find(indices.data(), static_cast<int64_t>(indices.size()), kRows,
                    RowGroups::BadRows::kIgnored, sharder, &bad_row),
        RowGroups::Status::kOk);
    for (int64_t k = 0; k < groups.size(); ++k) {
      ASSERT_LT(groups.sorted()[k].row, kRows);
    }
  }
  ends = true;
  other.join();
}

}  // namespace
}  // namespace tf_syncrep
