// InitialValues: the numbers are the published ones, and are rounded once.

#include "tf_syncrep/cc/lib/table/initial_values.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tf_syncrep/cc/lib/float16.h"

namespace tf_syncrep {
namespace {

template <typename T>
std::vector<T> Draw(const InitialValues& values, int64_t key, int64_t width) {
  std::vector<T> drawn(width);
  values.Draw(key, width, drawn.data());
  return drawn;
}

TEST(InitialValuesTest, AreTheSameForEachWidthAndDifferOtherwise) {
  const InitialValues values(InitialKind::kTruncatedNormal, 0, 1, 7, "items");
  const std::vector<double> wide = Draw<double>(values, 3, 9);
  for (int64_t width = 1; width < 9; ++width) {
    const std::vector<double> drawn = Draw<double>(values, 3, width);
    EXPECT_EQ(drawn, std::vector<double>(wide.begin(), wide.begin() + width));
  }
  EXPECT_NE(Draw<double>(values, 4, 9), wide);
  const InitialValues others(InitialKind::kTruncatedNormal, 0, 1, 7, "item");
  EXPECT_NE(Draw<double>(others, 3, 9), wide);
  const InitialValues seeded(InitialKind::kTruncatedNormal, 0, 1, 8, "items");
  EXPECT_NE(Draw<double>(seeded, 3, 9), wide);
}

TEST(InitialValuesTest, TruncatedOnesStayWithinTwoDeviations) {
  const InitialValues values(InitialKind::kTruncatedNormal, 0, 1, 7, "items");
  for (int64_t key = 0; key < 2000; ++key) {
    for (const double value : Draw<double>(values, key, 8)) {
      ASSERT_LE(std::abs(value), 2);
    }
  }
}

TEST(InitialValuesTest, AreRoundedOnce) {
  // This is just above the middle between two halves. As a float it is the
  // middle, which would be rounded to even, that is, down.
  const double above = 1 + 0x1p-11 + 0x1p-40;
  const InitialValues half(InitialKind::kConstant, above, 0, 0, "");
  EXPECT_EQ(Widen(Draw<Half>(half, 0, 1)[0]), 1 + 0x1p-10f);
  const double brain_above = 1 + 0x1p-8 + 0x1p-40;
  const InitialValues brain(InitialKind::kConstant, brain_above, 0, 0, "");
  EXPECT_EQ(Widen(Draw<BFloat16>(brain, 0, 1)[0]), 1 + 0x1p-7f);
  for (const double value : {0.0, -0.0, 1.0, -2.5, 1e300, -1e300, 1e-300}) {
    const InitialValues constant(InitialKind::kConstant, value, 0, 0, "");
    EXPECT_EQ(Widen(Draw<Half>(constant, 0, 1)[0]),
              Widen(Narrow<Half>(static_cast<float>(value))));
    EXPECT_EQ(Draw<double>(constant, 0, 1)[0], value);
  }
}

}  // namespace
}  // namespace tf_syncrep
