// TableClock: no row seems older than it is, nor much younger.

#include "tf_syncrep/cc/lib/table/table_clock.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

constexpr int32_t kLatest = std::numeric_limits<int32_t>::max();

TEST(TableClockTest, ARowAgesFromTheTimeAfterItsLastUse) {
  TableClock clock;
  EXPECT_EQ(clock.UnusedBefore(1), 0);
  clock.Set(10);
  // Rows of time 0 may have been used right before 10.
  EXPECT_EQ(clock.UnusedBefore(1), 0);
  clock.Set(12);
  EXPECT_EQ(clock.UnusedBefore(1), 10);
  EXPECT_EQ(clock.UnusedBefore(2), 0);
  clock.Set(13);
  EXPECT_EQ(clock.UnusedBefore(1), 10);
  EXPECT_EQ(clock.UnusedBefore(2), 10);
  EXPECT_EQ(clock.UnusedBefore(3), 0);
  EXPECT_EQ(clock.UnusedBefore(0), 0);
}

TEST(TableClockTest, ItCanBeSetBackAndAgainToTheSameTime) {
  TableClock clock;
  for (const int32_t time : {10, 20, 30, 15, 15}) {
    clock.Set(time);
  }
  EXPECT_EQ(clock.now(), 15);
  EXPECT_EQ(clock.UnusedBefore(4), 10);
  clock.Set(0);
  clock.Set(2);
  EXPECT_EQ(clock.UnusedBefore(1), 0);
  clock.Set(kLatest);
  EXPECT_EQ(clock.UnusedBefore(kLatest - 3), 2);
}

// What UnusedBefore() gives, if nothing was forgotten.
int32_t Exact(const std::vector<int32_t>& times, int64_t steps) {
  int32_t found = 0;
  for (const int32_t time : times) {
    if (times.back() - int64_t{time} > steps) {
      found = std::max(found, time);
    }
  }
  return found;
}

void Check(const TableClock& clock, const std::vector<int32_t>& times,
           std::mt19937_64& random) {
  const int32_t now = times.back();
  ASSERT_EQ(clock.now(), now);
  for (int i = 0; i < 200; ++i) {
    const int64_t steps = 1 + static_cast<int64_t>(random() >> random() % 64) %
                                  (int64_t{now} + 2);
    const int32_t found = clock.UnusedBefore(steps);
    ASSERT_LE(found, Exact(times, steps));
    const int64_t later = steps + steps / 30 + 1;
    ASSERT_GE(found, Exact(times, later)) << "of " << steps << " at " << now;
    ASSERT_TRUE(found == 0 ||
                std::find(times.begin(), times.end(), found) != times.end());
  }
}

TEST(TableClockTest, ForgetsFewTimes) {
  std::mt19937_64 random(3);
  for (const int32_t most : {1, 5, 100, 40000}) {
    TableClock clock;
    std::vector<int32_t> times = {0};
    for (int i = 0; i < 20000; ++i) {
      times.push_back(times.back() + 1 + static_cast<int32_t>(random() % most));
      clock.Set(times.back());
      if (i % 997 == 0 || i > 19990) {
        ASSERT_NO_FATAL_FAILURE(Check(clock, times, random));
      }
    }
  }
}

TEST(TableClockTest, GoesOnWhereItWas) {
  std::mt19937_64 random(4);
  std::vector<int32_t> times;
  for (int i = 0; i < 30000; ++i) {
    times.push_back(static_cast<int32_t>(random() % kLatest));
  }
  times.push_back(kLatest);
  TableClock::Times seen(kLatest);
  for (const int32_t time : times) {
    seen.Add(time);
  }
  TableClock clock;
  clock.Set(7);
  clock.Set(seen);
  ASSERT_NO_FATAL_FAILURE(Check(clock, times, random));
}

}  // namespace
}  // namespace tf_syncrep
