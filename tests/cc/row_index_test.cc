// RowIndex against a map from rows to numbers.

#include "tf_syncrep/cc/lib/row_index.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

std::vector<int64_t> RandomRows(int64_t num_rows, int64_t range, int64_t stride,
                                uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    rows.push_back(static_cast<int64_t>(random() % range) * stride);
  }
  return rows;
}

// What `index` says to `rows`.
std::vector<int32_t> Insert(RowIndex& index, const std::vector<int64_t>& rows) {
  std::vector<int32_t> numbers(rows.size());
  EXPECT_TRUE(index.Insert(rows.data(), static_cast<int64_t>(rows.size()),
                           numbers.data()));
  return numbers;
}

TEST(RowIndexTest, NumbersRowsInTheOrderInWhichTheyCome) {
  for (const int64_t stride : {int64_t{1}, int64_t{64}, int64_t{1} << 40}) {
    for (const int64_t num_rows : {0, 1, 31, 32, 33, 5000}) {
      RowIndex index;
      std::map<int64_t, int32_t> expected;
      for (uint32_t seed = 0; seed < 4; ++seed) {
        const std::vector<int64_t> rows =
            RandomRows(num_rows, 3000, stride, seed);
        const std::vector<int32_t> numbers = Insert(index, rows);
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto place = expected.try_emplace(
              rows[i], static_cast<int32_t>(expected.size()));
          ASSERT_EQ(numbers[i], place.first->second);
          ASSERT_EQ(index.rows()[numbers[i]], rows[i]);
        }
        ASSERT_EQ(index.size(), static_cast<int64_t>(expected.size()));
      }
    }
  }
}

TEST(RowIndexTest, TruncateForgetsTheLastRowsAndNoOthers) {
  RowIndex index;
  const std::vector<int64_t> first = RandomRows(300, 1 << 20, 1, 1);
  const std::vector<int32_t> numbers = Insert(index, first);
  const int64_t size = index.size();
  for (uint32_t seed = 2; seed < 10; ++seed) {
    // Many enough for the table to grow in between.
    const std::vector<int64_t> more = RandomRows(700, 1 << 20, 1, seed);
    Insert(index, more);
    index.Truncate(size);
    ASSERT_EQ(index.size(), size);
    ASSERT_EQ(Insert(index, first), numbers);
    ASSERT_EQ(index.size(), size);
  }
  const std::vector<int64_t> unknown = {int64_t{1} << 30};
  EXPECT_EQ(Insert(index, unknown)[0], size);
  index.Truncate(0);
  EXPECT_EQ(Insert(index, unknown)[0], 0);
}

TEST(RowIndexTest, ClearForgetsAll) {
  RowIndex index;
  for (const int64_t num_rows : {3000, 2000, 5, 0, 2000}) {
    const std::vector<int64_t> rows = RandomRows(num_rows, 1 << 20, 1, 1);
    const std::vector<int32_t> numbers = Insert(index, rows);
    RowIndex fresh;
    EXPECT_EQ(numbers, Insert(fresh, rows));
    index.Clear();
    EXPECT_EQ(index.size(), 0);
  }
}

TEST(RowIndexTest, TruncateOfNothing) {
  RowIndex index;
  index.Truncate(0);
  EXPECT_EQ(index.size(), 0);
}

}  // namespace
}  // namespace tf_syncrep
