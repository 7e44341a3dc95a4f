// A key that is seen often enough is admitted, whatever the count that it
// needs, and few of the others are.

#include "tf_syncrep/cc/lib/table/admission_sketch.h"

#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

class AdmissionSketchTest : public testing::TestWithParam<int> {};

TEST_P(AdmissionSketchTest,
       AdmitsAKeyThatComesSixTimesAmongAsManyAsItHasCounters) {
  constexpr int64_t kCounters = 4096;
  const int min_count = GetParam();
  AdmissionSketch sketch(kCounters, min_count);
  std::mt19937_64 random(1);
  const uint64_t hash = random();
  int64_t num_early = 0;
  int64_t num_others = 0;
  int times = 0;
  for (int count = 0; count < min_count;) {
    for (int i = 1; i < kCounters / 6; ++i) {
      int of_other;
      ASSERT_TRUE(sketch.Add(random(), &of_other));
      num_early += of_other >= min_count;
      ++num_others;
    }
    ASSERT_TRUE(sketch.Add(hash, &count));
    ASSERT_LE(++times, 2 * min_count) << count;
  }
  EXPECT_LT(num_early, num_others / 10);
}

TEST(AdmissionSketchTest, CountersAreNotHalvedAllAtOnce) {
  constexpr int64_t kCounters = 1 << 16;
  constexpr int kMinCount = 16;
  AdmissionSketch sketch(kCounters, kMinCount);
  std::mt19937_64 random(1);
  uint64_t hashes[50];
  int count;
  for (uint64_t& hash : hashes) {
    hash = random();
    for (int i = 1; i <= 9; ++i) {
      ASSERT_TRUE(sketch.Add(hash, &count));
    }
  }
  const uint64_t other = random();
  for (int64_t i = 0; i < kCounters * kMinCount / 8 * 3 / 2; ++i) {
    ASSERT_TRUE(sketch.Add(other, &count));
  }
  int num_halved = 0;
  for (const uint64_t hash : hashes) {
    ASSERT_TRUE(sketch.Add(hash, &count));
    ASSERT_TRUE(count == 10 || count == 5) << count;
    num_halved += count == 5 ? 1 : 0;
  }
  EXPECT_GT(num_halved, 10);
  EXPECT_LT(num_halved, 40);
}

INSTANTIATE_TEST_SUITE_P(MinCounts, AdmissionSketchTest,
                         testing::Values(2, 3, 4, 20, 100, 255));

}  // namespace
}  // namespace tf_syncrep
