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

INSTANTIATE_TEST_SUITE_P(MinCounts, AdmissionSketchTest,
                         testing::Values(2, 3, 4, 20, 100, 255));

}  // namespace
}  // namespace tf_syncrep
