// Half and BFloat16: every value, and the roundings in between.

#include "tf_syncrep/cc/lib/float16.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/gradient_loops.h"

namespace tf_syncrep {
namespace {

// The value of a half from its definition.
double HalfValue(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(HalfTest, WidensEveryValueExactlyThoughDenormalsAreFlushed) {
  const ScopedFlushDenormals flush_denormals;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half = {static_cast<uint16_t>(bits)};
    const double expected = HalfValue(half.bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(Widen(half))) << bits;
    } else {
      EXPECT_EQ(Widen(half), expected) << bits;
      EXPECT_EQ(std::signbit(Widen(half)), std::signbit(expected)) << bits;
    }
  }
}

template <typename T>
class Float16Test : public testing::Test {};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(Float16Test, Types);

TYPED_TEST(Float16Test, NarrowsEveryValueToItself) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Widen(TypeParam{static_cast<uint16_t>(bits)});
    const TypeParam narrow = Narrow<TypeParam>(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Widen(narrow))) << bits;
    } else {
      EXPECT_EQ(narrow.bits, bits);
    }
  }
}

TEST(HalfTest, RoundsBetweenNeighboursToNearestEven) {
  // All pairs of neighbours from zero to the largest finite value.
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const uint16_t high = low + 1;
    const float middle =
        static_cast<float>((HalfValue(low) + HalfValue(high)) / 2);
    const uint16_t even = low % 2 == 0 ? low : high;
    EXPECT_EQ(Narrow<Half>(middle).bits, even) << low;
    EXPECT_EQ(Narrow<Half>(-middle).bits, even | 0x8000) << low;
    EXPECT_EQ(Narrow<Half>(std::nextafter(middle, 0.0f)).bits, low);
    EXPECT_EQ(Narrow<Half>(std::nextafter(middle, 1e6f)).bits, high);
  }
}

TEST(HalfTest, OverflowsToInfinity) {
  EXPECT_EQ(Narrow<Half>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Narrow<Half>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Narrow<Half>(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Narrow<Half>(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

TEST(BFloat16Test, RoundsBetweenNeighboursToNearestEven) {
  for (uint16_t low = 0x0080; low < 0x7f7f; ++low) {
    const uint16_t high = low + 1;
    const float middle = Widen(BFloat16{low}) +
                         (Widen(BFloat16{high}) - Widen(BFloat16{low})) / 2.0f;
    EXPECT_EQ(Narrow<BFloat16>(middle).bits, low % 2 == 0 ? low : high);
    EXPECT_EQ(Narrow<BFloat16>(std::nextafter(middle, 0.0f)).bits, low);
  }
}

template <typename T>
void TestLoops() {
  // Each float whose lower bits are zero, and roundings between 16-bit numbers.
  constexpr int64_t kSize = 1 << 20;
  std::vector<float> floats(kSize);
  std::vector<T> expected(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    const auto bits = static_cast<uint32_t>(i << 12);
    std::memcpy(&floats[i], &bits, sizeof(bits));
    expected[i] = Narrow<T>(floats[i]);
  }
  for (const CpuLevel level :
       {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level > BestCpuLevel()) {
      continue;
    }
    const GradientLoops<T>& loops = GradientLoopsFor<T>(level);
    std::vector<T> out(kSize);
    loops.narrow(kSize, floats.data(), out.data());
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), kSize * sizeof(T)), 0);
    std::vector<float> sum(kSize, 0.3f);
    loops.add_scaled(kSize, 0.7f, out.data(), sum.data());
    for (int64_t i = 0; i < kSize; ++i) {
      const float added = 0.3f + 0.7f * Widen(expected[i]);
      ASSERT_TRUE(sum[i] == added || (std::isnan(sum[i]) && std::isnan(added)))
          << floats[i];
    }
    loops.set(kSize, out.data(), sum.data());
    for (int64_t i = 0; i < kSize; ++i) {
      const float wide = Widen(expected[i]);
      ASSERT_TRUE(std::memcmp(&sum[i], &wide, sizeof(wide)) == 0 ||
                  (std::isnan(sum[i]) && std::isnan(wide)))
          << floats[i];
    }
  }
}

TEST(GradientLoopsTest, NarrowSetAndAddScaledGiveTheSameBitsAtEveryLevel) {
  TestLoops<Half>();
  TestLoops<BFloat16>();
}

}  // namespace
}  // namespace tf_syncrep
