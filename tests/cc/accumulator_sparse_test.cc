// SparseGradientSum against a map from rows to sums.

#include "tf_syncrep/cc/lib/accumulator_sparse.h"

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

template <typename T>
Gradient<T> RandomGradient(int64_t num_rows, int64_t range, int64_t row_size,
                           uint32_t seed) {
  std::mt19937_64 random(seed);
  Gradient<T> gradient;
  for (int64_t i = 0; i < num_rows; ++i) {
    gradient.rows.push_back(static_cast<int64_t>(random() % range));
  }
  gradient.values = RandomValues<T>(num_rows * row_size, random);
  return gradient;
}

template <typename T>
struct Result {
  std::vector<int64_t> rows;
  std::vector<T> values;
};

template <typename T>
Result<T> Finish(SparseGradientSum<T>& sum, Reduction reduction,
                 int64_t num_gradients, int64_t row_size, Sharder& sharder) {
  Result<T> result;
  EXPECT_TRUE(sum.Finish(
      reduction, num_gradients,
      [&](int64_t num_rows, SparseResult<T>* out) {
        result.rows.resize(num_rows);
        result.values.resize(num_rows * row_size);
        *out = {result.rows.data(), result.values.data()};
        return true;
      },
      sharder));
  return result;
}

template <typename T>
Result<T> Expected(const std::vector<Gradient<T>>& gradients,
                   Reduction reduction, int64_t row_size) {
  std::map<int64_t, std::vector<SlotType<T>>> sums;
  std::map<int64_t, int64_t> counts;
  for (const Gradient<T>& gradient : gradients) {
    for (size_t i = 0; i < gradient.rows.size(); ++i) {
      const T* values = gradient.values.data() + i * row_size;
      auto [place, is_new] = sums.try_emplace(gradient.rows[i], row_size);
      for (int64_t k = 0; k < row_size; ++k) {
        place->second[k] = is_new ? SlotType<T>(Widen(values[k]))
                                  : place->second[k] + Widen(values[k]);
      }
    }
    for (const int64_t row :
         std::set<int64_t>(gradient.rows.begin(), gradient.rows.end())) {
      ++counts[row];
    }
  }
  Result<T> result;
  for (const auto& [row, sum] : sums) {
    int64_t divisor = 1;
    if (reduction == Reduction::kMean) {
      divisor = counts[row];
    } else if (reduction == Reduction::kCountedMean) {
      divisor = static_cast<int64_t>(gradients.size());
    }
    result.rows.push_back(row);
    for (const SlotType<T> element : sum) {
      result.values.push_back(
          Narrow<T>(element / static_cast<SlotType<T>>(divisor)));
    }
  }
  return result;
}

// `tolerance` is relative to 1; 0 asks for equal bits.
template <typename T>
void ExpectResult(const Result<T>& result, const Result<T>& expected,
                  double tolerance) {
  ASSERT_EQ(result.rows, expected.rows);
  ASSERT_EQ(result.values.size(), expected.values.size());
  for (size_t i = 0; i < result.values.size(); ++i) {
    ASSERT_NEAR(Widen(result.values[i]), Widen(expected.values[i]), tolerance)
        << "at " << i;
  }
}

constexpr Reduction kReductions[] = {Reduction::kMean, Reduction::kSum,
                                     Reduction::kCountedMean};

template <typename T>
class SparseSumTest : public testing::Test {};
using Types = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(SparseSumTest, Types);

TYPED_TEST(SparseSumTest, SumsRowsInOrderOfArrival) {
  for (const int64_t row_size : {0, 1, 7, 64}) {
    for (const int64_t num_rows : {0, 1, 50, 700}) {
      std::vector<Gradient<TypeParam>> gradients;
      for (int i = 0; i < 4; ++i) {
        gradients.push_back(
            RandomGradient<TypeParam>(num_rows, 300, row_size, i));
      }
      for (const Reduction reduction : kReductions) {
        ThreadSharder sharder(3);
        SparseGradientSum<TypeParam> sum(
            std::make_shared<SparseSumMemory<TypeParam>>());
        for (const auto& gradient : gradients) {
          ASSERT_TRUE(sum.Add(gradient.rows, row_size, gradient.values.data(),
                              sharder));
        }
        ExpectResult(Finish(sum, reduction, 4, row_size, sharder),
                     Expected(gradients, reduction, row_size), 0);
      }
    }
  }
}

TYPED_TEST(SparseSumTest, MergeOfTwoSumsCountsGradientsApart) {
  constexpr int64_t kRowSize = 3;
  std::vector<Gradient<TypeParam>> gradients;
  for (int i = 0; i < 30; ++i) {
    gradients.push_back(RandomGradient<TypeParam>(40, 30, kRowSize, i));
  }
  for (const Reduction reduction : kReductions) {
    ThreadSharder sharder(2);
    const auto memory = std::make_shared<SparseSumMemory<TypeParam>>();
    SparseGradientSum<TypeParam> first(memory);
    SparseGradientSum<TypeParam> second(memory);
    // Before, between and after the merge.
    const auto add = [&](SparseGradientSum<TypeParam>& sum, size_t begin,
                         size_t end) {
      for (size_t i = begin; i < end; ++i) {
        ASSERT_TRUE(sum.Add(gradients[i].rows, kRowSize,
                            gradients[i].values.data(), sharder));
      }
    };
    add(first, 0, 12);
    add(second, 12, 25);
    first.Merge(second, sharder);
    add(first, 25, gradients.size());
    EXPECT_EQ(first.error(), nullptr);
    // Sums of sums are added.
    const double tolerance = sizeof(TypeParam) > 2 ? 1e-4 : 0.1;
    ExpectResult(Finish(first, reduction, 30, kRowSize, sharder),
                 Expected(gradients, reduction, kRowSize), tolerance);
  }
}

TYPED_TEST(SparseSumTest, MergesWithASumOfNothing) {
  ThreadSharder sharder(1);
  const auto memory = std::make_shared<SparseSumMemory<TypeParam>>();
  const std::vector<Gradient<TypeParam>> gradients = {
      RandomGradient<TypeParam>(40, 30, 3, 1)};
  for (const bool is_first : {false, true}) {
    SparseGradientSum<TypeParam> sums[2] = {
        SparseGradientSum<TypeParam>(memory),
        SparseGradientSum<TypeParam>(memory)};
    ASSERT_TRUE(sums[is_first ? 0 : 1].Add(
        gradients[0].rows, 3, gradients[0].values.data(), sharder));
    sums[0].Merge(sums[1], sharder);
    ExpectResult(Finish(sums[0], Reduction::kMean, 1, 3, sharder),
                 Expected(gradients, Reduction::kMean, 3), 0);
  }
}

TEST(SparseSumOfFloatTest, SameBitsOnAnyThreadsAndInstructionSet) {
  constexpr int64_t kRowSize = 33;
  std::vector<Gradient<float>> gradients;
  for (int i = 0; i < 6; ++i) {
    gradients.push_back(RandomGradient<float>(20000, 9000, kRowSize, i));
  }
  const Result<float> expected =
      Expected(gradients, Reduction::kMean, kRowSize);
  for (const int num_threads : {1, 2, 5}) {
    for (const CpuLevel level :
         {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
      if (level > BestCpuLevel()) {
        continue;
      }
      ThreadSharder sharder(num_threads);
      SparseGradientSum<float> sum(std::make_shared<SparseSumMemory<float>>(),
                                   level);
      for (const auto& gradient : gradients) {
        ASSERT_TRUE(
            sum.Add(gradient.rows, kRowSize, gradient.values.data(), sharder));
      }
      ExpectResult(Finish(sum, Reduction::kMean, 6, kRowSize, sharder),
                   expected, 0);
    }
  }
}

TEST(SparseSumOfFloatTest, OneRowInAllGradientsManyTimes) {
  ThreadSharder sharder(4);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory<float>>());
  const std::vector<int64_t> rows(5000, 7);
  const std::vector<float> ones(5000 * 16, 1.0f);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(sum.Add(rows, 16, ones.data(), sharder));
  }
  const Result<float> result = Finish(sum, Reduction::kMean, 8, 16, sharder);
  EXPECT_EQ(result.rows, std::vector<int64_t>{7});
  EXPECT_EQ(result.values, std::vector<float>(16, 5000.0f));
}

TEST(SparseSumOfFloatTest, MemoryIsForTheDifferentRows) {
  ThreadSharder sharder(1);
  const auto memory = std::make_shared<SparseSumMemory<float>>();
  const Gradient<float> gradient = RandomGradient<float>(20000, 500, 16, 1);
  {
    SparseGradientSum<float> sum(memory);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(sum.Add(gradient.rows, 16, gradient.values.data(), sharder));
    }
  }
  EXPECT_LE(memory->chunks.kept_bytes(), 8 * 500 * 16 * sizeof(float));
}

TEST(SparseSumOfFloatTest, RowsLargerThanAChunk) {
  constexpr int64_t kRowSize = 5 << 20;  // 20 MB
  ThreadSharder sharder(2);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory<float>>());
  const std::vector<float> values(2 * kRowSize, 3.0f);
  ASSERT_TRUE(sum.Add({9, 4}, kRowSize, values.data(), sharder));
  const Result<float> result =
      Finish(sum, Reduction::kSum, 1, kRowSize, sharder);
  EXPECT_EQ(result.rows, (std::vector<int64_t>{4, 9}));
  EXPECT_EQ(result.values, values);
}

TEST(SparseSumOfFloatTest, NoMemoryForTheResult) {
  ThreadSharder sharder(1);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory<float>>());
  const float value = 1;
  ASSERT_TRUE(sum.Add({3}, 1, &value, sharder));
  EXPECT_FALSE(sum.Finish(
      Reduction::kSum, 1, [](int64_t, SparseResult<float>*) { return false; },
      sharder));
}

TEST(SparseSumOfFloatTest, TheNextRoundUsesTheMemoryOfTheLast) {
  const auto memory = std::make_shared<SparseSumMemory<float>>();
  ThreadSharder sharder(1);
  const Gradient<float> gradient = RandomGradient<float>(30000, 1 << 20, 8, 1);
  const std::set<int64_t> rows(gradient.rows.begin(), gradient.rows.end());
  size_t kept = 0;
  for (int round = 0; round < 5; ++round) {
    {
      SparseGradientSum<float> sum(memory);
      ASSERT_TRUE(sum.Add(gradient.rows, 8, gradient.values.data(), sharder));
      EXPECT_LT(memory->chunks.kept_bytes(), 1u << 20) << "in use now";
    }
    if (round > 0) {
      EXPECT_EQ(memory->chunks.kept_bytes(), kept);
    }
    kept = memory->chunks.kept_bytes();
    EXPECT_GE(kept, rows.size() * 8 * sizeof(float));
  }
}

}  // namespace
}  // namespace tf_syncrep
