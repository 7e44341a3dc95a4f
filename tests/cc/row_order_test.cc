// SortByRow against std::stable_sort.

#include "tf_syncrep/cc/lib/row_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

TEST(RowOrderTest, SortsAndKeepsTheOrderOfEqualRows) {
  std::mt19937_64 random(1);
  for (const int64_t size : {0, 1, 2, 100, 3000, 200000}) {
    for (const int64_t range :
         {int64_t{1}, int64_t{2}, int64_t{1000}, int64_t{1} << 21,
          int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
      std::vector<RowOccurrence> rows(size);
      std::vector<RowOccurrence> spare(size);
      for (int64_t i = 0; i < size; ++i) {
        rows[i] = {static_cast<int64_t>(random() % range),
                   static_cast<uint64_t>(i)};
      }
      std::vector<RowOccurrence> expected = rows;
      std::stable_sort(expected.begin(), expected.end(),
                       [](const RowOccurrence& a, const RowOccurrence& b) {
                         return a.row < b.row;
                       });
      ThreadSharder sharder(3);
      const RowOccurrence* sorted =
          SortByRow(rows.data(), spare.data(), size, sharder);
      for (int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(sorted[i].row, expected[i].row);
        ASSERT_EQ(sorted[i].place, expected[i].place);
      }
    }
  }
}

}  // namespace
}  // namespace tf_syncrep
