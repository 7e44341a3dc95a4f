// SortByRow against std::stable_sort.

#include "tf_syncrep/cc/lib/rows/row_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

template <typename Row>
class RowOrderTest : public testing::Test {};
using Rows = testing::Types<uint32_t, uint64_t>;
TYPED_TEST_SUITE(RowOrderTest, Rows);

TYPED_TEST(RowOrderTest, SortsAndKeepsTheOrderOfEqualRows) {
  using Occurrence = RowOccurrence<TypeParam>;
  std::mt19937_64 random(1);
  for (const int64_t size : {0, 1, 2, 100, 3000, 200000}) {
    for (const uint64_t range :
         {uint64_t{1}, uint64_t{2}, uint64_t{1000}, uint64_t{1} << 21,
          uint64_t{1} << 31, uint64_t{std::numeric_limits<TypeParam>::max()}}) {
      std::vector<Occurrence> rows(size);
      std::vector<Occurrence> spare(size);
      for (int64_t i = 0; i < size; ++i) {
        rows[i] = {static_cast<TypeParam>(random() % range),
                   static_cast<TypeParam>(i)};
      }
      std::vector<Occurrence> expected = rows;
      std::stable_sort(expected.begin(), expected.end(),
                       [](const Occurrence& a, const Occurrence& b) {
                         return a.row < b.row;
                       });
      ThreadSharder sharder(3);
      const Occurrence* sorted =
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
