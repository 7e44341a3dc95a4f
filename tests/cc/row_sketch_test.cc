// RowSketch: estimates within a few standard errors.

#include "tf_syncrep/cc/lib/row_sketch.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace tf_syncrep {
namespace {

TEST(RowSketchTest, EstimatesTheNumberOfDifferentRows) {
  EXPECT_EQ(RowSketch().Estimate(), 0);
  for (const int64_t stride : {1, 7, 1 << 20}) {
    for (const int64_t n : {1, 10, 500, 3000, 100000, 2000000}) {
      RowSketch sketch;
      for (int64_t i = 0; i < n; ++i) {
        sketch.Insert(i * stride);
      }
      EXPECT_NEAR(static_cast<double>(sketch.Estimate()), n, 0.12 * n + 0.5);
    }
  }
}

TEST(RowSketchTest, RowsThatRepeatCountOnce) {
  RowSketch sketch;
  for (int64_t i = 0; i < 100000; ++i) {
    sketch.Insert(i % 1000);
  }
  EXPECT_NEAR(static_cast<double>(sketch.Estimate()), 1000, 100);
}

TEST(RowSketchTest, MergeCountsTheUnion) {
  RowSketch a;
  RowSketch b;
  for (int64_t i = 0; i < 20000; ++i) {
    a.Insert(i);
    b.Insert(i + 10000);
  }
  a.Merge(b);
  EXPECT_NEAR(static_cast<double>(a.Estimate()), 30000, 3600);
}

}  // namespace
}  // namespace tf_syncrep
