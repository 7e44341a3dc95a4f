// AdamAsync on plain memory, against its formulas in double.

#include "tf_syncrep/cc/lib/adam_async.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

template <typename Slot>
std::vector<AdamAsyncUpdate<Slot>> AllUpdates() {
  std::vector<AdamAsyncUpdate<Slot>> updates;
  for (const AdamAsyncFormula formula :
       {AdamAsyncFormula::kAdam, AdamAsyncFormula::kNesterov,
        AdamAsyncFormula::kRmsprop}) {
    updates.push_back({formula, Slot(0.01), Slot(0.9), Slot(0.99), Slot(1e-6)});
  }
  updates.back().beta1 = Slot(0.5);
  updates.push_back({AdamAsyncFormula::kRmsprop, Slot(0.01), Slot(0),
                     Slot(0.99), Slot(1e-6)});
  return updates;
}

// Updates one element, as in the comment of AdamAsyncFormula.
template <typename Slot>
void UpdateElement(const AdamAsyncUpdate<Slot>& update, double g, double* var,
                   double* m, double* v) {
  const double beta1 = update.beta1;
  const double beta2 = update.beta2;
  *v = beta2 * *v + (1 - beta2) * g * g;
  if (update.formula == AdamAsyncFormula::kRmsprop) {
    *m = beta1 * *m + update.step_size * g / std::sqrt(*v + update.epsilon);
    *var -= *m;
    return;
  }
  *m = beta1 * *m + (1 - beta1) * g;
  const double direction = update.formula == AdamAsyncFormula::kNesterov
                               ? beta1 * *m + (1 - beta1) * g
                               : *m;
  *var -= update.step_size * direction / (std::sqrt(*v) + update.epsilon);
}

// A table with moments, and its twin in double.
template <typename T>
struct Table {
  using Slot = SlotType<T>;

  Table(int64_t size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < size; ++i) {
      var.push_back(Narrow<T>(uniform(random)));
      m.push_back(Slot(uniform(random)));
      v.push_back(Slot(std::abs(uniform(random))));
      expected_var.push_back(Widen(var[i]));
      expected_m.push_back(m[i]);
      expected_v.push_back(v[i]);
    }
  }

  void ExpectElement(const AdamAsyncUpdate<Slot>& update, double g, int64_t i) {
    UpdateElement(update, g, &expected_var[i], &expected_m[i], &expected_v[i]);
  }

  void CheckNear(double var_tolerance, double slot_tolerance) const {
    for (size_t i = 0; i < var.size(); ++i) {
      ASSERT_NEAR(Widen(var[i]), expected_var[i], var_tolerance) << i;
      ASSERT_NEAR(m[i], expected_m[i], slot_tolerance) << i;
      ASSERT_NEAR(v[i], expected_v[i], slot_tolerance) << i;
    }
  }

  bool SameBits(const Table& other) const {
    return std::memcmp(var.data(), other.var.data(), var.size() * sizeof(T)) ==
               0 &&
           std::memcmp(m.data(), other.m.data(), m.size() * sizeof(Slot)) ==
               0 &&
           std::memcmp(v.data(), other.v.data(), v.size() * sizeof(Slot)) == 0;
  }

  std::vector<T> var;
  std::vector<Slot> m;
  std::vector<Slot> v;
  std::vector<double> expected_var;
  std::vector<double> expected_m;
  std::vector<double> expected_v;
};

template <typename T>
std::vector<T> RandomGradient(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> grad;
  for (int64_t i = 0; i < size; ++i) {
    grad.push_back(Narrow<T>(normal(random)));
  }
  return grad;
}

std::vector<int64_t> RandomRows(int64_t num_rows, int64_t range,
                                uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    // The distribution is skewed: low rows occur often.
    const double u = static_cast<double>(random() % 10000) / 10000;
    rows.push_back(static_cast<int64_t>(u * u * u * range));
  }
  return rows;
}

// The tolerances cover the rounding of the variable's type, and of the
// arithmetic.
template <typename T>
double VarTolerance() {
  return sizeof(T) == 8 ? 1e-13 : sizeof(T) == 4 ? 2e-6 : 1e-2;
}
template <typename T>
double SlotTolerance() {
  return sizeof(SlotType<T>) == 8 ? 1e-12 : 2e-5;
}

template <typename T>
class AdamAsyncTest : public testing::Test {};
using AllTypes = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(AdamAsyncTest, AllTypes);

TYPED_TEST(AdamAsyncTest, DenseFollowsTheFormula) {
  using T = TypeParam;
  ThreadSharder sharder(2);
  for (const auto& update : AllUpdates<SlotType<T>>()) {
    for (const int64_t size : {0, 1, 7, 64, 1000, 70001}) {
      Table<T> table(size, 1);
      const std::vector<T> grad = RandomGradient<T>(size, 2);
      for (int64_t i = 0; i < size; ++i) {
        table.ExpectElement(update, Widen(grad[i]), i);
      }
      ApplyAdamAsync<T>(update, size, grad.data(), {}, table.var.data(),
                        table.m.data(), table.v.data(), sharder);
      table.CheckNear(VarTolerance<T>(), SlotTolerance<T>());
    }
  }
}

// Numbers in [-1, 1), the same with every standard library.
template <typename T>
std::vector<T> PortableNumbers(int64_t size, std::mt19937_64& random) {
  std::vector<T> numbers;
  for (int64_t i = 0; i < size; ++i) {
    const auto bits = static_cast<float>(random() >> 40);  // 24 of them
    numbers.push_back(Narrow<T>(bits / (1 << 23) - 1));
  }
  return numbers;
}

template <typename Element>
void AddToDigest(const std::vector<Element>& array, uint64_t* digest) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(array.data());
  for (size_t i = 0; i < array.size() * sizeof(Element); ++i) {
    *digest = (*digest ^ bytes[i]) * 0x100000001b3;  // FNV-1a
  }
}

template <typename T>
constexpr uint64_t kRecordedDigest = 0;  // of the types below
template <>
constexpr uint64_t kRecordedDigest<Half> = 0x582627f7d08d1cab;
template <>
constexpr uint64_t kRecordedDigest<BFloat16> = 0x690cdb3eeca962ec;
template <>
constexpr uint64_t kRecordedDigest<float> = 0xb70a60740604d2af;
template <>
constexpr uint64_t kRecordedDigest<double> = 0x3da5ef5f9581c0d6;

// The bits of a training do not change from one version to the next: these are
// of the loops that AdamAsync had before it became a rule among others.
TYPED_TEST(AdamAsyncTest, BitsAreThoseThatWereRecorded) {
  using T = TypeParam;
  using Slot = SlotType<T>;
  const int64_t num_rows = 300;
  const int64_t row_size = 37;
  uint64_t digest = 0xcbf29ce484222325;
  std::mt19937_64 random(14);
  ThreadSharder sharder(2);
  for (const auto& update : AllUpdates<Slot>()) {
    auto var = PortableNumbers<T>(num_rows * row_size, random);
    auto m = PortableNumbers<Slot>(num_rows * row_size, random);
    auto v = PortableNumbers<Slot>(num_rows * row_size, random);
    for (Slot& x : v) {
      x = std::abs(x);
    }
    for (int step = 0; step < 2; ++step) {
      const auto grad = PortableNumbers<T>(num_rows * row_size, random);
      ApplyAdamAsync<T>(update, num_rows * row_size, grad.data(), {},
                        var.data(), m.data(), v.data(), sharder);
      // Some rows occur several times, and some do not occur.
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < num_rows; ++i) {
        rows.push_back(static_cast<int64_t>(random() % num_rows));
      }
      SparseApplyAdamAsync<T>(update, GroupsOf(rows), row_size, grad.data(),
                              var.data(), m.data(), v.data(), sharder);
    }
    AddToDigest(var, &digest);
    AddToDigest(m, &digest);
    AddToDigest(v, &digest);
  }
  EXPECT_EQ(digest, kRecordedDigest<T>);
}

TYPED_TEST(AdamAsyncTest, ArraysThatOthersReadStayAndBitsAreTheSame) {
  using T = TypeParam;
  ThreadSharder sharder(2);
  for (const int64_t size : {1, 4095, 4097, 50'000}) {
    const Table<T> before(size, 11);
    const std::vector<T> grad = RandomGradient<T>(size, 12);
    for (const auto& update : AllUpdates<SlotType<T>>()) {
      Table<T> expected = before;
      ApplyAdamAsync<T>(update, size, grad.data(), {}, expected.var.data(),
                        expected.m.data(), expected.v.data(), sharder);
      for (const int read : {1, 2, 4, 7}) {
        Table<T> read_one = before;
        Table<T> table(size, 13);
        AdamAsyncBefore<T> from;
        const auto keep_or_copy = [read](int bit, auto& kept, auto& array,
                                         auto* from_array) {
          if ((read & bit) != 0) {
            *from_array = kept.data();
          } else {
            array = kept;
          }
        };
        keep_or_copy(1, read_one.var, table.var, &from.var);
        keep_or_copy(2, read_one.m, table.m, &from.m);
        keep_or_copy(4, read_one.v, table.v, &from.v);
        ApplyAdamAsync<T>(update, size, grad.data(), from, table.var.data(),
                          table.m.data(), table.v.data(), sharder);
        EXPECT_TRUE(table.SameBits(expected));
        EXPECT_TRUE(read_one.SameBits(before));
      }
    }
  }
}

TYPED_TEST(AdamAsyncTest, SparseSumsRepeatedRowsAndAppliesThemOnce) {
  using T = TypeParam;
  ThreadSharder sharder(3);
  for (const auto& update : AllUpdates<SlotType<T>>()) {
    for (const int64_t row_size : {1, 3, 64, 65}) {
      const int64_t num_rows = 2000;
      Table<T> table(300 * row_size, 3);
      const std::vector<int64_t> rows = RandomRows(num_rows, 300, 4);
      const std::vector<T> grad = RandomGradient<T>(num_rows * row_size, 5);
      std::map<int64_t, std::vector<double>> sums;
      for (int64_t i = 0; i < num_rows; ++i) {
        std::vector<double>& sum = sums[rows[i]];
        sum.resize(row_size);
        for (int64_t j = 0; j < row_size; ++j) {
          sum[j] += Widen(grad[i * row_size + j]);
        }
      }
      for (const auto& [row, sum] : sums) {
        for (int64_t j = 0; j < row_size; ++j) {
          table.ExpectElement(update, sum[j], row * row_size + j);
        }
      }
      SparseApplyAdamAsync<T>(update, GroupsOf(rows), row_size, grad.data(),
                              table.var.data(), table.m.data(), table.v.data(),
                              sharder);
      // v grows with the square of a sum of up to hundreds of gradients.
      table.CheckNear(2 * VarTolerance<T>(), 500 * SlotTolerance<T>());
    }
  }
}

TYPED_TEST(AdamAsyncTest, BitsDependNeitherOnThreadsNorOnInstructionSet) {
  using T = TypeParam;
  const int64_t num_rows = 3000;
  const int64_t row_size = 37;
  const std::vector<int64_t> rows = RandomRows(num_rows, 500, 6);
  const std::vector<T> sparse_grad = RandomGradient<T>(num_rows * row_size, 7);
  const std::vector<T> dense_grad = RandomGradient<T>(500 * row_size, 8);
  for (const auto& update : AllUpdates<SlotType<T>>()) {
    const auto run = [&](int threads, CpuLevel level) {
      ThreadSharder sharder(threads);
      Table<T> table(500 * row_size, 9);
      ApplyAdamAsync<T>(update, 500 * row_size, dense_grad.data(), {},
                        table.var.data(), table.m.data(), table.v.data(),
                        sharder, level);
      SparseApplyAdamAsync<T>(update, GroupsOf(rows), row_size,
                              sparse_grad.data(), table.var.data(),
                              table.m.data(), table.v.data(), sharder, level);
      return table;
    };
    const Table<T> expected = run(1, CpuLevel::kBaseline);
    for (int level = 0; level <= static_cast<int>(BestCpuLevel()); ++level) {
      for (const int threads : {1, 2, 5}) {
        EXPECT_TRUE(
            expected.SameBits(run(threads, static_cast<CpuLevel>(level))))
            << CpuLevelName(static_cast<CpuLevel>(level)) << ", " << threads
            << " threads";
      }
    }
  }
}

TYPED_TEST(AdamAsyncTest, RowsThatAreGroupedAlreadyGetTheSameBits) {
  using T = TypeParam;
  const int64_t row_size = 33;
  // The first index is ignored, as all negative ones are.
  std::vector<int64_t> rows = {-2};
  for (int64_t row = 1; row < 2000; row += 1 + row % 3) {
    rows.push_back(row);
  }
  const auto num_rows = static_cast<int64_t>(rows.size());
  const std::vector<T> grad = RandomGradient<T>(num_rows * row_size, 10);
  // The indices are reversed, so that rows have to be grouped.
  const std::vector<int64_t> last_first(rows.rbegin(), rows.rend());
  std::vector<T> grad_of_last_first;
  for (int64_t i = num_rows - 1; i >= 0; --i) {
    grad_of_last_first.insert(grad_of_last_first.end(),
                              grad.begin() + i * row_size,
                              grad.begin() + (i + 1) * row_size);
  }
  for (const auto& update : AllUpdates<SlotType<T>>()) {
    Table<T> expected(2000 * row_size, 11);
    ThreadSharder one(1);
    SparseApplyAdamAsync<T>(update, GroupsOf(last_first), row_size,
                            grad_of_last_first.data(), expected.var.data(),
                            expected.m.data(), expected.v.data(), one);
    for (const int threads : {1, 2, 5}) {
      Table<T> table(2000 * row_size, 11);
      ThreadSharder sharder(threads);
      SparseApplyAdamAsync<T>(update, GroupsOf(rows), row_size, grad.data(),
                              table.var.data(), table.m.data(), table.v.data(),
                              sharder);
      EXPECT_TRUE(expected.SameBits(table)) << threads << " threads";
    }
  }
}

TEST(SparseApplyAdamAsyncTest, ConcurrentCallsLoseNoUpdate) {
  // With momentum 1, beta2 1 and this epsilon, m += g is exact, and var sums up
  // the values of m, whatever the order of the calls.
  const AdamAsyncUpdate<double> update = {AdamAsyncFormula::kRmsprop, 1024.0,
                                          1.0, 1.0, 1048576.0};
  constexpr int kCallers = 8;
  constexpr int kCalls = 50;
  const int64_t num_rows = 64;
  const int64_t row_size = 33;
  std::vector<double> var(10 * row_size, 0.0);
  std::vector<double> m(10 * row_size, 0.0);
  std::vector<double> v(10 * row_size, 0.0);
  std::vector<int64_t> rows;
  std::vector<int64_t> count(10, 0);
  for (int64_t i = 0; i < num_rows; ++i) {
    rows.push_back(i % 10);
    count[i % 10]++;
  }
  const std::vector<double> grad(num_rows * row_size, 1.0);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      ThreadSharder sharder(2);
      for (int call = 0; call < kCalls; ++call) {
        SparseApplyAdamAsync<double>(update, GroupsOf(rows), row_size,
                                     grad.data(), var.data(), m.data(),
                                     v.data(), sharder);
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  constexpr double kUpdates = kCallers * kCalls;
  for (int64_t row = 0; row < 10; ++row) {
    for (int64_t j = 0; j < row_size; ++j) {
      EXPECT_EQ(m[row * row_size + j], kUpdates * count[row]);
      EXPECT_EQ(var[row * row_size + j],
                -count[row] * kUpdates * (kUpdates + 1) / 2);
    }
  }
}

TEST(AdamAsyncStepSizeTest, CorrectsTheBias) {
  EXPECT_DOUBLE_EQ(AdamAsyncStepSize(0.1, 0.9, 0.999),
                   0.1 * std::sqrt(1 - 0.999) / (1 - 0.9));
  EXPECT_DOUBLE_EQ(AdamAsyncStepSize(0.1, 0.0, 0.0), 0.1);
}

}  // namespace
}  // namespace tf_syncrep
