// Stochastic rounding: what a value may become, how often, and by which bits.

#include "tf_syncrep/cc/lib/rules/stochastic_rounding.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/rules/adagrad.h"
#include "tf_syncrep/cc/lib/rules/apply_rule.h"
#include "tf_syncrep/cc/lib/rules/rowwise_adagrad.h"
#include "tf_syncrep/cc/lib/rules/sgd.h"

namespace tf_syncrep {
namespace {

// How many of the random bits decide about a value of this type.
template <typename T>
constexpr int kBits = 16;
template <>
constexpr int kBits<Half> = 13;
constexpr int kDenormalBits = 20;

template <typename T>
T Of(uint32_t bits) {
  return T{static_cast<uint16_t>(bits)};
}

// The draw whose highest `bits` bits are `value`.
uint32_t Draw(uint32_t value, int bits) { return value << (32 - bits); }

template <typename T>
class StochasticRoundingTest : public testing::Test {};

using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(StochasticRoundingTest, Types);

TYPED_TEST(StochasticRoundingTest, LeavesEveryNumberOfTheTypeAsItIs) {
  const ScopedFlushDenormals flush_denormals;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Widen(Of<TypeParam>(bits));
    for (const uint32_t draw : {0u, 0x80000000u, 0xffffffffu}) {
      const TypeParam rounded = RoundStochastically<TypeParam>(value, draw);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(Widen(rounded))) << bits;
      } else {
        ASSERT_EQ(rounded.bits, bits) << draw;
      }
    }
  }
}

// Between two neighbours, a value becomes the outer one in as many of all draws
// as it is parts of the way there.
TYPED_TEST(StochasticRoundingTest, GoesOutwardAsOftenAsItIsFarOut) {
  using T = TypeParam;
  const ScopedFlushDenormals flush_denormals;
  const bool is_half = kBits<T> == 13;
  // Those of bfloat16 whose eighths of a place are denormals are left out.
  const uint32_t first = is_half ? 0 : 0x600;
  const uint32_t last = is_half ? 0x7bff : 0x7f7f;
  for (uint32_t inner = first; inner < last; ++inner) {
    const bool is_denormal = is_half && inner < 0x400;
    const int bits = is_denormal ? kDenormalBits : kBits<T>;
    const float low = Widen(Of<T>(inner));
    const float place = Widen(Of<T>(inner + 1)) - low;
    for (const uint32_t part : {1u, 3u, 8u}) {
      // That many eighths of the way.
      const float value = low + place * (static_cast<float>(part) / 8);
      const uint32_t all = uint32_t{1} << bits;
      const uint32_t stays = all - all / 8 * part;  // so many draws stay inside
      const uint32_t inside = RoundStochastically<T>(value, 0).bits;
      ASSERT_EQ(inside, part == 8 ? inner + 1 : inner) << inner;
      if (part == 8) {
        continue;
      }
      ASSERT_EQ(RoundStochastically<T>(value, Draw(stays - 1, bits)).bits,
                inner);
      ASSERT_EQ(RoundStochastically<T>(value, Draw(stays, bits)).bits,
                inner + 1);
      ASSERT_EQ(RoundStochastically<T>(-value, Draw(stays - 1, bits)).bits,
                inner | 0x8000);
      ASSERT_EQ(RoundStochastically<T>(-value, Draw(stays, bits)).bits,
                (inner + 1) | 0x8000);
    }
  }
}

TYPED_TEST(StochasticRoundingTest,
           MakesNothingInfiniteThatNearestLeavesFinite) {
  using T = TypeParam;
  const uint32_t largest_bits = kBits<T> == 13 ? 0x7bff : 0x7f7f;
  const float largest = Widen(Of<T>(largest_bits));
  const float before = Widen(Of<T>(largest_bits - 1));
  const float beyond = largest + (largest - before) / 4;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value :
       {largest, beyond, std::numeric_limits<float>::max(), infinity}) {
    for (const uint32_t draw : {0u, 0x80000000u, 0xffffffffu}) {
      EXPECT_EQ(RoundStochastically<T>(value, draw).bits,
                Narrow<T>(value).bits);
      EXPECT_EQ(RoundStochastically<T>(-value, draw).bits,
                Narrow<T>(-value).bits);
    }
  }
  // The last place below is like any other.
  const float below = before + (largest - before) / 2;
  EXPECT_EQ(RoundStochastically<T>(below, 0u).bits, largest_bits - 1);
  EXPECT_EQ(RoundStochastically<T>(below, 0xffffffffu).bits, largest_bits);
}

TEST(RoundingDrawsTest, BitsOfNeighboursAreFairAndIndependent) {
  constexpr int kUpdates = 64;
  constexpr int kRows = 64;
  constexpr uint32_t kElements = 64;
  // By bit: how often it is set, and equal to that of the next element, row and
  // update, and of the row with the next seed.
  int set[32] = {};
  int equal[4][32] = {};
  for (int update = 0; update < kUpdates; ++update) {
    const RoundingDraws draws(1, -update, 0, 1);
    const RoundingDraws next(1, -update - 1, 0, 1);
    const RoundingDraws other(2, -update, 0, 1);
    for (int row = 0; row < kRows; ++row) {
      for (uint32_t i = 0; i < kElements; ++i) {
        const uint32_t x = draws.OfRow(row, 0).Of(i);
        const uint32_t others[] = {
            draws.OfRow(row, 0).Of(i + 1), draws.OfRow(row + 1, 0).Of(i),
            next.OfRow(row, 0).Of(i), other.OfRow(row, 0).Of(i)};
        for (int bit = 0; bit < 32; ++bit) {
          set[bit] += static_cast<int>(x >> bit & 1);
          for (int k = 0; k < 4; ++k) {
            equal[k][bit] += static_cast<int>(~(x ^ others[k]) >> bit & 1);
          }
        }
      }
    }
  }
  constexpr double kNum = 1.0 * kUpdates * kRows * kElements;
  // Five standard deviations.
  const double error = 5 * std::sqrt(kNum) / 2;
  for (int bit = 0; bit < 32; ++bit) {
    EXPECT_NEAR(set[bit], kNum / 2, error) << bit;
    for (const auto& of_pair : equal) {
      EXPECT_NEAR(of_pair[bit], kNum / 2, error) << bit;
    }
  }
}

TEST(RoundingDrawsTest, PartsOfATableDrawAsTheWholeTable) {
  const RoundingDraws whole(3, -7, 0, 1);
  for (int64_t part = 0; part < 3; ++part) {
    const RoundingDraws of_part(3, -7, part, 3);
    for (int64_t row = 0; row < 20; ++row) {
      EXPECT_EQ(of_part.OfRow(row, 2).Of(5),
                whole.OfRow(3 * row + part, 0).Of(7));
    }
  }
}

template <typename T, typename Rule>
std::vector<T> Updated(const Rule& rule, int threads, CpuLevel level,
                       int64_t row_size) {
  const int64_t num_rows = row_size > 1000 ? 50 : 1500;
  ThreadSharder sharder(threads);
  std::vector<T> var;
  std::vector<T> grad;
  for (int64_t i = 0; i < num_rows * row_size; ++i) {
    var.push_back(Narrow<T>(static_cast<float>(i % 977) / 977 - 0.5f));
    grad.push_back(Narrow<T>(static_cast<float>(i % 797) / 797 - 0.3f));
  }
  std::vector<float> slot(num_rows * row_size, 0.1f);
  // Every third row occurs twice.
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    rows.push_back(i % 3 == 2 ? i - 1 : i);
  }
  RuleArrays<T> arrays = {var.data()};
  for (size_t i = 0; i < Rule::kSlots.size(); ++i) {
    arrays.slots[i] = slot.data();
  }
  const RoundingDraws draws(5, -1, 0, 1);
  const auto rounded = RuleOf<T>(rule, level, &draws);
  ApplyRule<T>(rounded, num_rows, row_size, grad.data(), arrays, sharder);
  SparseApplyRule<T>(rounded, GroupsOf(rows), row_size, grad.data(), arrays,
                     sharder, level);
  return var;
}

template <typename T, typename Rule>
void ExpectSameBits(const Rule& rule) {
  for (const int64_t row_size : {1, 37, 2100}) {
    const auto expected = Updated<T>(rule, 1, CpuLevel::kBaseline, row_size);
    for (int level = 0; level <= static_cast<int>(BestCpuLevel()); ++level) {
      for (const int threads : {1, 3, 16}) {
        const auto got =
            Updated<T>(rule, threads, static_cast<CpuLevel>(level), row_size);
        EXPECT_EQ(
            std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)), 0)
            << row_size << ", " << level << ", " << threads;
      }
    }
  }
}

TYPED_TEST(StochasticRoundingTest,
           BitsDependNeitherOnThreadsNorOnInstructionSet) {
  ExpectSameBits<TypeParam>(Sgd<float>{0.01f});
  ExpectSameBits<TypeParam>(Adagrad<float>{0.01f, 1e-7f});
  ExpectSameBits<TypeParam>(RowwiseAdagrad<float>{0.01f, 1e-8f});
}

}  // namespace
}  // namespace tf_syncrep
