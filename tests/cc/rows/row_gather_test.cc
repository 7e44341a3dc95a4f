// Gathers rows whose numbers another thread changes meanwhile.

#include "tf_syncrep/cc/lib/rows/row_gather.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kWidth = 5;
constexpr int64_t kSize = 64;
// So many rows of the table are copied. If a number were read again after it
// was checked, most such runs would meet one that was changed in between. A
// ThreadSanitizer is slow, and finds any read that is not atomic.
#ifdef __SANITIZE_THREAD__
constexpr int64_t kTimes = 100'000;
#else
constexpr int64_t kTimes = 10'000'000;
#endif
constexpr float kInside = 1;
constexpr float kOutside = 2;
constexpr float kBefore = 3;

// All numbers become `outside`, which is a row beside the table, and become a
// row of the table again, at any time.
template <typename Row>
void CheckThatNothingOutsideIsRead(Row outside, MissingRows missing) {
  std::vector<float> memory((kRows + 2) * kWidth, kOutside);
  float* const table = memory.data() + kWidth;
  std::fill_n(table, kRows * kWidth, kInside);
  const Row inside = outside < 0 ? 0 : kRows - 1;
  std::vector<Row> rows(kSize, inside);
  std::atomic<bool> is_over{false};
  std::thread owner([&] {
    while (!is_over) {
      for (const Row row : {outside, inside}) {
        for (Row& each : rows) {
          __atomic_store_n(&each, row, __ATOMIC_RELAXED);
        }
      }
    }
  });
  ThreadSharder sharder(1);
  std::vector<float> result(kSize * kWidth);
  int64_t num_inside = 0;
  int64_t num_outside = 0;
  int64_t num_wrong = 0;
  while (num_wrong == 0 && (num_inside < kTimes || num_outside == 0)) {
    std::fill(result.begin(), result.end(), kBefore);
    const int64_t first_bad =
        GatherRows(table, kRows, kWidth, rows.data(), kSize, missing,
                   result.data(), sharder);
    const int64_t num_read = first_bad < 0 ? kSize : first_bad;
    num_outside += first_bad < 0 ? 0 : 1;
    for (int64_t i = 0; i < kSize * kWidth; i += kWidth) {
      const float value = result[i];
      const bool is_whole =
          std::count(&result[i], &result[i] + kWidth, value) == kWidth;
      if (i < num_read * kWidth && value == kInside && is_whole) {
        ++num_inside;
      } else if (i < num_read * kWidth && value == 0 && is_whole &&
                 missing == MissingRows::kZeros) {
        ++num_outside;
      } else if (i < num_read * kWidth || value != kBefore || !is_whole) {
        ++num_wrong;
      }
    }
  }
  is_over = true;
  owner.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(RowGatherTest, ANumberThatChangesMeanwhileIsNoRowBesideTheTable) {
  CheckThatNothingOutsideIsRead<int32_t>(-1, MissingRows::kRefused);
  CheckThatNothingOutsideIsRead<int64_t>(-1, MissingRows::kRefused);
  CheckThatNothingOutsideIsRead<int32_t>(kRows, MissingRows::kRefused);
  CheckThatNothingOutsideIsRead<int64_t>(kRows, MissingRows::kRefused);
}

TEST(RowGatherTest, ANumberThatComesToBeMissingMeanwhileIsARowOrZeros) {
  CheckThatNothingOutsideIsRead<int32_t>(-1, MissingRows::kZeros);
  CheckThatNothingOutsideIsRead<int64_t>(-1, MissingRows::kZeros);
}

}  // namespace
}  // namespace tf_syncrep
