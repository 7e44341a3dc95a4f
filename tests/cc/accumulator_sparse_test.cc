// SparseGradientSum against a map from rows to sums.

#include "tf_syncrep/cc/lib/accumulator_sparse.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"

// By default sanitizers end the program if there is no memory.
extern "C" __attribute__((visibility("default"))) const char*
__asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_options() {
  return "allocator_may_return_null=1";
}

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

// Gradients with the seeds 0, 1 and so on.
template <typename T>
std::vector<Gradient<T>> RandomGradients(int num_gradients, int64_t num_rows,
                                         int64_t range, int64_t row_size) {
  std::vector<Gradient<T>> gradients;
  for (int i = 0; i < num_gradients; ++i) {
    gradients.push_back(RandomGradient<T>(num_rows, range, row_size, i));
  }
  return gradients;
}

template <typename T>
struct Result {
  std::vector<int64_t> rows;
  std::vector<T> values;
};

// Values that others hold as well.
template <typename T>
OwnedBuffer NotOurs(const std::vector<T>& values) {
  return {const_cast<T*>(values.data()), nullptr};
}

// Values that nobody else holds.
template <typename T>
OwnedBuffer Ours(const std::vector<T>& values) {
  const auto owner = std::make_shared<std::vector<T>>(values);
  return {owner->data(), owner};
}

// Adds gradients from number `begin` to number `end`, which others hold as
// well.
template <typename T>
void AddTo(SparseGradientSum<T>& sum, const std::vector<Gradient<T>>& gradients,
           size_t begin, size_t end, int64_t row_size, Sharder& sharder) {
  for (size_t i = begin; i < end; ++i) {
    ASSERT_TRUE(sum.Add(ArrayOf(gradients[i].rows), row_size,
                        NotOurs(gradients[i].values), sharder));
  }
}

template <typename T>
Result<T> Finish(SparseGradientSum<T>& sum, Reduction reduction,
                 int64_t num_gradients, int64_t row_size, Sharder& sharder) {
  SparseResult result;
  EXPECT_TRUE(sum.Finish(reduction, num_gradients, sharder, &result));
  const auto* const rows = static_cast<const int64_t*>(result.rows.data);
  const auto* const values = static_cast<const T*>(result.values.data);
  return {{rows, rows + result.num_rows},
          {values, values + result.num_rows * row_size}};
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
  if (!result.values.empty() &&
      std::memcmp(result.values.data(), expected.values.data(),
                  result.values.size() * sizeof(T)) == 0) {
    return;
  }
  for (size_t i = 0; i < result.values.size(); ++i) {
    ASSERT_NEAR(Widen(result.values[i]), Widen(expected.values[i]), tolerance)
        << "at " << i;
  }
}

constexpr Reduction kReductions[] = {Reduction::kMean, Reduction::kSum,
                                     Reduction::kCountedMean};
// Rows are merged now and then, or never.
constexpr int64_t kMinMergeBytes[] = {1, int64_t{1} << 40};

template <typename T>
class SparseSumTest : public testing::Test {};
using Types = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(SparseSumTest, Types);

TYPED_TEST(SparseSumTest, SumsRowsInOrderOfArrival) {
  for (const int64_t row_size : {0, 1, 7, 64, 70}) {
    for (const int64_t num_rows : {0, 1, 50, 700}) {
      const auto gradients =
          RandomGradients<TypeParam>(4, num_rows, 300, row_size);
      for (const Reduction reduction : kReductions) {
        for (const int64_t min_merge_bytes : kMinMergeBytes) {
          ThreadSharder sharder(3);
          SparseGradientSum<TypeParam> sum(std::make_shared<SparseSumMemory>(),
                                           BestCpuLevel(), min_merge_bytes);
          for (size_t i = 0; i < gradients.size(); ++i) {
            const auto& values = gradients[i].values;
            ASSERT_TRUE(sum.Add(ArrayOf(gradients[i].rows), row_size,
                                i % 2 == 0 ? NotOurs(values) : Ours(values),
                                sharder));
          }
          ExpectResult(Finish(sum, reduction, 4, row_size, sharder),
                       Expected(gradients, reduction, row_size), 0);
        }
      }
    }
  }
}

TEST(SparseSumOfFloatTest, SameBitsOnAnyThreadsAndInstructionSet) {
  constexpr int64_t kRowSize = 33;
  const auto gradients = RandomGradients<float>(6, 20000, 9000, kRowSize);
  const Result<float> expected =
      Expected(gradients, Reduction::kMean, kRowSize);
  for (const int num_threads : {1, 2, 5}) {
    for (const CpuLevel level :
         {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
      if (level > BestCpuLevel()) {
        continue;
      }
      for (const int64_t min_merge_bytes : kMinMergeBytes) {
        ThreadSharder sharder(num_threads);
        SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>(), level,
                                     min_merge_bytes);
        AddTo(sum, gradients, 0, 6, kRowSize, sharder);
        ExpectResult(Finish(sum, Reduction::kMean, 6, kRowSize, sharder),
                     expected, 0);
      }
    }
  }
}

TEST(SparseSumOfFloatTest, OneRowInAllGradientsManyTimes) {
  ThreadSharder sharder(4);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>());
  const std::vector<int64_t> rows(5000, 7);
  const std::vector<float> ones(5000 * 16, 1.0f);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(sum.Add(ArrayOf(rows), 16, NotOurs(ones), sharder));
  }
  const Result<float> result = Finish(sum, Reduction::kMean, 8, 16, sharder);
  EXPECT_EQ(result.rows, std::vector<int64_t>{7});
  EXPECT_EQ(result.values, std::vector<float>(16, 5000.0f));
}

TEST(SparseSumOfFloatTest, HoldsFewTimesAsManyRowsAsThereAreDifferentOnes) {
  constexpr int64_t kNumRows = 300;
  constexpr int64_t kRange = 500;
  constexpr int64_t kRowSize = 16;
  // Of 20 gradients.
  constexpr int64_t kMinBytes = 20 * kNumRows * (kRowSize * sizeof(float) + 8);
  const auto memory = std::make_shared<SparseSumMemory>();
  for (int round = 0; round < 2; ++round) {
    const auto gradients =
        RandomGradients<float>(100, kNumRows, kRange, kRowSize);
    ThreadSharder sharder(1);
    SparseGradientSum<float> sum(memory, BestCpuLevel(), kMinBytes);
    int64_t most = 0;
    for (int i = 0; i < 100; ++i) {
      AddTo(sum, gradients, i, i + 1, kRowSize, sharder);
      most = std::max(most, sum.num_held_rows());
    }
    EXPECT_GT(most, 15 * kNumRows) << "merged too early";
    EXPECT_LE(most, 20 * kNumRows) << "merged too late";
    ExpectResult(Finish(sum, Reduction::kMean, 100, kRowSize, sharder),
                 Expected(gradients, Reduction::kMean, kRowSize), 0);
  }
}

TEST(SparseSumOfFloatTest, AGradientWithoutRowsSaysNothingOfTheirSize) {
  ThreadSharder sharder(1);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>());
  const std::vector<float> values = {1, 2};
  ASSERT_TRUE(sum.Add(ArrayOf({3}), 2, NotOurs(values), sharder));
  ASSERT_TRUE(sum.Add(ArrayOf({}), 0, NotOurs<float>({}), sharder));
  const Result<float> result = Finish(sum, Reduction::kMean, 2, 2, sharder);
  EXPECT_EQ(result.values, values);
}

TEST(SparseSumOfFloatTest, ManySmallGradients) {
  ThreadSharder sharder(1);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>(),
                               BestCpuLevel(), 1);
  const std::vector<float> one = {1};
  for (int64_t i = 0; i < 11000; ++i) {
    ASSERT_TRUE(sum.Add(ArrayOf({i % 1000}), 1, NotOurs(one), sharder));
    ASSERT_LE(sum.num_held_rows(), 4 * 1000);
  }
  const Result<float> result = Finish(sum, Reduction::kSum, 11000, 1, sharder);
  EXPECT_EQ(result.values, std::vector<float>(1000, 11.0f));
}

TEST(SparseSumOfFloatTest, ValuesOfOursAreKeptAndLetGo) {
  const auto memory = std::make_shared<SparseSumMemory>();
  const Gradient<float> gradient = RandomGradient<float>(300, 500, 16, 1);
  const OwnedBuffer values = Ours(gradient.values);
  ThreadSharder sharder(1);
  {
    SparseGradientSum<float> sum(memory);
    ASSERT_TRUE(sum.Add(ArrayOf(gradient.rows), 16, values, sharder));
    EXPECT_EQ(values.owner.use_count(), 2);
    Finish(sum, Reduction::kMean, 1, 16, sharder);
  }
  EXPECT_EQ(values.owner.use_count(), 1);
  // Nobody writes to them.
  EXPECT_EQ(0, std::memcmp(values.data, gradient.values.data(),
                           gradient.values.size() * sizeof(float)));
}

TEST(SparseSumOfFloatTest, MemoryOfALargeRoundIsFreedAfterSmallOnes) {
  ThreadSharder sharder(1);
  const auto memory = std::make_shared<SparseSumMemory>();
  const Gradient<float> large = RandomGradient<float>(40000, 1 << 20, 16, 1);
  const Gradient<float> small = RandomGradient<float>(3000, 1 << 20, 16, 1);
  for (const Gradient<float>* gradient : {&large, &small}) {
    SparseGradientSum<float> sum(memory);
    ASSERT_TRUE(sum.Add(ArrayOf(gradient->rows), 16, NotOurs(gradient->values),
                        sharder));
    Finish(sum, Reduction::kMean, 1, 16, sharder);
  }
  // There are the copy and the result, and the sort takes less than these.
  EXPECT_LE(memory->chunks->kept_bytes(),
            kMaxTimesKept * 3 * 3000 * 16 * sizeof(float));
}

TEST(SparseSumOfFloatTest, LargeRows) {
  constexpr int64_t kRowSize = 5 << 20;  // 20 MB
  ThreadSharder sharder(2);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>());
  std::vector<float> values(2 * kRowSize, 3.0f);
  values.back() = 1.0f;
  ASSERT_TRUE(sum.Add(ArrayOf({9, 4}), kRowSize, NotOurs(values), sharder));
  ASSERT_TRUE(sum.Add(ArrayOf({9}), kRowSize, NotOurs(values), sharder));
  const Result<float> result =
      Finish(sum, Reduction::kSum, 2, kRowSize, sharder);
  EXPECT_EQ(result.rows, (std::vector<int64_t>{4, 9}));
  std::vector<float> expected(2 * kRowSize, 3.0f);
  expected[kRowSize - 1] = 1.0f;
  std::fill(expected.begin() + kRowSize, expected.end(), 6.0f);
  EXPECT_EQ(result.values, expected);
}

// The sum does not fit into the caches, and is written past them.
TEST(SparseSumOfFloatTest, SumsOfManyRows) {
  for (const int64_t row_size : {256, 257}) {
    const auto gradients = RandomGradients<float>(2, 30000, 100000, row_size);
    ThreadSharder sharder(3);
    SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>());
    AddTo(sum, gradients, 0, 2, row_size, sharder);
    ExpectResult(Finish(sum, Reduction::kMean, 2, row_size, sharder),
                 Expected(gradients, Reduction::kMean, row_size), 0);
  }
}

TEST(SparseSumOfFloatTest, NoMemoryForACopy) {
  // More than any address space has.
  constexpr int64_t kRowSize = int64_t{1} << 55;
  ThreadSharder sharder(1);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>());
  const std::vector<float> value = {1};
  EXPECT_FALSE(sum.Add(ArrayOf({3}), kRowSize, NotOurs(value), sharder));
  EXPECT_EQ(sum.num_held_rows(), 0);
  ASSERT_TRUE(sum.Add(ArrayOf({5}), 1, NotOurs(value), sharder));
  const Result<float> result = Finish(sum, Reduction::kSum, 1, 1, sharder);
  EXPECT_EQ(result.rows, std::vector<int64_t>{5});
  EXPECT_EQ(result.values, std::vector<float>{1});
}

TEST(SparseSumOfFloatTest, MemoryComesBack) {
  const auto memory = std::make_shared<SparseSumMemory>();
  ThreadSharder sharder(2);
  const Gradient<float> gradient = RandomGradient<float>(30000, 1 << 20, 8, 1);
  const std::set<int64_t> rows(gradient.rows.begin(), gradient.rows.end());
  const size_t result_bytes = rows.size() * 8 * sizeof(float);
  size_t kept = 0;
  for (int round = 0; round < 5; ++round) {
    SparseResult result;
    {
      SparseGradientSum<float> sum(memory);
      ASSERT_TRUE(sum.Add(ArrayOf(gradient.rows), 8, NotOurs(gradient.values),
                          sharder));
      ASSERT_TRUE(sum.Finish(Reduction::kMean, 1, sharder, &result));
    }
    EXPECT_EQ(result.num_rows, static_cast<int64_t>(rows.size()));
    const size_t kept_beside_the_result = memory->chunks->kept_bytes();
    result = {};
    kept = round == 0 ? memory->chunks->kept_bytes() : kept;
    EXPECT_EQ(memory->chunks->kept_bytes(), kept);
    EXPECT_GE(kept, kept_beside_the_result + result_bytes);
  }
}

}  // namespace
}  // namespace tf_syncrep
