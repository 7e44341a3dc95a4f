// Compares every rule on plain memory with its formula in double.

#include "tf_syncrep/cc/lib/rules/apply_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/rules/adagrad.h"
#include "tf_syncrep/cc/lib/rules/adam_async.h"
#include "tf_syncrep/cc/lib/rules/ftrl.h"
#include "tf_syncrep/cc/lib/rules/rowwise_adagrad.h"
#include "tf_syncrep/cc/lib/rules/sgd.h"

namespace tf_syncrep {
namespace {

using Doubles = std::vector<double>;

// A row of a table, its slots and its gradient, which a twin updates.
struct Row {
  Doubles var;
  Doubles slots[kMaxSlots];
};

// Each case is a rule with its numbers, and its twin.

struct AdagradCase {
  template <typename Slot>
  using Rule = Adagrad<Slot>;
  template <typename Slot>
  static Rule<Slot> Make() {
    return {Slot(0.25), Slot(0.125)};
  }
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      row->slots[0][i] += g[i] * g[i];
      row->var[i] -= 0.25 * g[i] / std::sqrt(row->slots[0][i] + 0.125);
    }
  }
};

struct RowwiseAdagradCase {
  template <typename Slot>
  using Rule = RowwiseAdagrad<Slot>;
  template <typename Slot>
  static Rule<Slot> Make() {
    return {Slot(0.25), Slot(0.125)};
  }
  static void Update(const Doubles& g, Row* row) {
    double squares = 0;
    for (const double x : g) {
      squares += x * x;
    }
    row->slots[0][0] += squares / static_cast<double>(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      row->var[i] -= 0.25 * g[i] / (std::sqrt(row->slots[0][0]) + 0.125);
    }
  }
};

template <bool kOfRoots>
struct FtrlCase {
  template <typename Slot>
  using Rule = FtrlOf<Slot, kOfRoots>;
  static constexpr double kPower = kOfRoots ? -0.5 : -0.75;
  template <typename Slot>
  static Rule<Slot> Make() {
    return {Slot(0.25),  Slot(kPower), Slot(0.5),
            Slot(0.125), Slot(0.0625), Slot(0.75)};
  }
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      double& w = row->var[i];
      double& n = row->slots[0][i];
      double& z = row->slots[1][i];
      const double sum = n + g[i] * g[i];
      const double sigma =
          (std::pow(sum, -kPower) - std::pow(n, -kPower)) / 0.25;
      z += g[i] + 2 * 0.0625 * w - sigma * w;
      const double sign = z < 0 ? -1 : 1;
      w = std::abs(z) <= 0.5
              ? 0
              : (sign * 0.5 - z) /
                    (std::pow(sum, -kPower) / 0.25 + 2 * 0.125 + 0.75 / 0.25);
      n = sum;
    }
  }
};

struct SgdCase {
  template <typename Slot>
  using Rule = Sgd<Slot>;
  template <typename Slot>
  static Rule<Slot> Make() {
    return {Slot(0.25)};
  }
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      row->var[i] -= 0.25 * g[i];
    }
  }
};

// Rules with a learning rate and a momentum.
template <template <typename> class MomentumRule>
struct CaseWithMomentum {
  template <typename Slot>
  using Rule = MomentumRule<Slot>;
  template <typename Slot>
  static Rule<Slot> Make() {
    return {Slot(0.25), Slot(0.75)};
  }
};

struct MomentumCase : CaseWithMomentum<Momentum> {
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      double& m = row->slots[0][i];
      m = 0.75 * m - 0.25 * g[i];
      row->var[i] += m;
    }
  }
};

struct NesterovCase : CaseWithMomentum<Nesterov> {
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      double& m = row->slots[0][i];
      m = 0.75 * m - 0.25 * g[i];
      row->var[i] += 0.75 * m - 0.25 * g[i];
    }
  }
};

struct GradientMomentumCase : CaseWithMomentum<GradientMomentum> {
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      double& m = row->slots[0][i];
      m = 0.75 * m + g[i];
      row->var[i] -= 0.25 * m;
    }
  }
};

struct GradientNesterovCase : CaseWithMomentum<GradientNesterov> {
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      double& m = row->slots[0][i];
      m = 0.75 * m + g[i];
      row->var[i] -= 0.25 * g[i] + 0.25 * 0.75 * m;
    }
  }
};

template <AdamAsyncFormula kFormula>
struct AdamAsyncCase {
  template <typename Slot>
  using Rule = AdamAsyncRule<Slot, kFormula>;
  template <typename Slot>
  static Rule<Slot> Make() {
    return {Slot(0.125), Slot(0.75), Slot(0.5), Slot(0.25)};
  }
  static void Update(const Doubles& g, Row* row) {
    for (size_t i = 0; i < g.size(); ++i) {
      double& m = row->slots[0][i];
      double& v = row->slots[1][i];
      v = 0.5 * v + 0.5 * g[i] * g[i];
      if (kFormula == AdamAsyncFormula::kRmsprop) {
        m = 0.75 * m + 0.125 * g[i] / std::sqrt(v + 0.25);
        row->var[i] -= m;
        continue;
      }
      m = 0.75 * m + 0.25 * g[i];
      const double direction =
          kFormula == AdamAsyncFormula::kNesterov ? 0.75 * m + 0.25 * g[i] : m;
      row->var[i] -= 0.125 * direction / (std::sqrt(v) + 0.25);
    }
  }
};
using AdamCase = AdamAsyncCase<AdamAsyncFormula::kAdam>;
using NesterovAdamCase = AdamAsyncCase<AdamAsyncFormula::kNesterov>;
using RmspropCase = AdamAsyncCase<AdamAsyncFormula::kRmsprop>;

// A table with slots, in the form that the functions take.
template <typename T, typename Rule>
struct Table {
  using Slot = SlotType<T>;

  Table(int64_t num_rows, int64_t row_size, uint64_t seed)
      : row_size(row_size), slot_size(Rule::kIsRowwise ? 1 : row_size) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < num_rows * row_size; ++i) {
      var.push_back(Narrow<T>(uniform(random)));
    }
    for (size_t slot = 0; slot < Rule::kSlots.size(); ++slot) {
      const std::string_view name = Rule::kSlots[slot];
      const bool is_of_squares = name == "accumulator" || name == "v";
      for (int64_t i = 0; i < num_rows * slot_size; ++i) {
        const float number = uniform(random);
        slots[slot].push_back(Slot(is_of_squares ? std::abs(number) : number));
      }
    }
  }

  RuleArrays<T> arrays() {
    RuleArrays<T> arrays = {var.data()};
    for (size_t slot = 0; slot < Rule::kSlots.size(); ++slot) {
      arrays.slots[slot] = slots[slot].data();
    }
    return arrays;
  }

  Row RowOf(int64_t index) const {
    Row row;
    for (int64_t i = index * row_size; i < (index + 1) * row_size; ++i) {
      row.var.push_back(Widen(var[i]));
    }
    for (size_t slot = 0; slot < Rule::kSlots.size(); ++slot) {
      for (int64_t i = index * slot_size; i < (index + 1) * slot_size; ++i) {
        row.slots[slot].push_back(slots[slot][i]);
      }
    }
    return row;
  }

  bool SameBits(const Table& other) const {
    bool same =
        std::memcmp(var.data(), other.var.data(), var.size() * sizeof(T)) == 0;
    for (int slot = 0; slot < kMaxSlots; ++slot) {
      const size_t bytes = slots[slot].size() * sizeof(Slot);
      same &= bytes == 0 || std::memcmp(slots[slot].data(),
                                        other.slots[slot].data(), bytes) == 0;
    }
    return same;
  }

  int64_t row_size;
  int64_t slot_size;
  std::vector<T> var;
  std::vector<Slot> slots[kMaxSlots];
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

// Low rows occur often.
std::vector<int64_t> RandomRows(int64_t num, int64_t range, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < num; ++i) {
    const double u = static_cast<double>(random() % 10000) / 10000;
    rows.push_back(static_cast<int64_t>(u * u * u * range));
  }
  return rows;
}

// Tolerances are relative to the compared values, and to one.
template <typename T>
void ExpectNear(const Doubles& got, const Doubles& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << i;
  }
}
template <typename T>
void ExpectNear(const Row& got, const Row& want) {
  const bool is_double = sizeof(T) == 8;
  ExpectNear<T>(got.var, want.var,
                is_double        ? 1e-11
                : sizeof(T) == 4 ? 1e-4
                                 : 1e-2);
  for (int slot = 0; slot < kMaxSlots; ++slot) {
    ExpectNear<T>(got.slots[slot], want.slots[slot], is_double ? 1e-11 : 1e-4);
  }
}

template <typename TypeAndCase>
class ApplyRuleTest : public testing::Test {
 protected:
  using T = typename TypeAndCase::first_type;
  using Case = typename TypeAndCase::second_type;
  using Rule = typename Case::template Rule<SlotType<T>>;
  using RuleTable = Table<T, Rule>;

  const Rule rule_ = Case::template Make<SlotType<T>>();
};

using Types = testing::Types<
    std::pair<Half, AdagradCase>, std::pair<BFloat16, AdagradCase>,
    std::pair<float, AdagradCase>, std::pair<double, AdagradCase>,
    std::pair<Half, RowwiseAdagradCase>,
    std::pair<BFloat16, RowwiseAdagradCase>,
    std::pair<float, RowwiseAdagradCase>, std::pair<double, RowwiseAdagradCase>,
    std::pair<Half, FtrlCase<true>>, std::pair<BFloat16, FtrlCase<true>>,
    std::pair<float, FtrlCase<true>>, std::pair<double, FtrlCase<true>>,
    std::pair<float, FtrlCase<false>>, std::pair<double, FtrlCase<false>>,
    std::pair<Half, SgdCase>, std::pair<BFloat16, SgdCase>,
    std::pair<float, SgdCase>, std::pair<double, SgdCase>,
    std::pair<Half, MomentumCase>, std::pair<BFloat16, MomentumCase>,
    std::pair<float, MomentumCase>, std::pair<double, MomentumCase>,
    std::pair<Half, NesterovCase>, std::pair<BFloat16, NesterovCase>,
    std::pair<float, NesterovCase>, std::pair<double, NesterovCase>,
    std::pair<Half, GradientMomentumCase>,
    std::pair<float, GradientMomentumCase>,
    std::pair<double, GradientMomentumCase>,
    std::pair<BFloat16, GradientNesterovCase>,
    std::pair<float, GradientNesterovCase>,
    std::pair<double, GradientNesterovCase>, std::pair<Half, AdamCase>,
    std::pair<BFloat16, AdamCase>, std::pair<float, AdamCase>,
    std::pair<double, AdamCase>, std::pair<BFloat16, NesterovAdamCase>,
    std::pair<float, NesterovAdamCase>, std::pair<double, NesterovAdamCase>,
    std::pair<Half, RmspropCase>, std::pair<float, RmspropCase>,
    std::pair<double, RmspropCase>>;
TYPED_TEST_SUITE(ApplyRuleTest, Types);

TYPED_TEST(ApplyRuleTest, DenseUpdateFollowsTheFormula) {
  using T = typename TestFixture::T;
  ThreadSharder sharder(3);
  for (const int64_t row_size : {1, 3, 64, 65}) {
    const int64_t num_rows = 700;
    typename TestFixture::RuleTable table(num_rows, row_size, 1);
    const auto before = table;
    const auto grad = RandomGradient<T>(num_rows * row_size, 2);
    ApplyRule<T>(RuleOf<T>(this->rule_), num_rows, row_size, grad.data(),
                 table.arrays(), sharder);
    for (int64_t row = 0; row < num_rows; ++row) {
      Doubles g;
      for (int64_t i = 0; i < row_size; ++i) {
        g.push_back(Widen(grad[row * row_size + i]));
      }
      Row expected = before.RowOf(row);
      TestFixture::Case::Update(g, &expected);
      ExpectNear<T>(table.RowOf(row), expected);
    }
  }
}

TEST(FtrlTest, WhatHadNoGradientThatCanBeSquaredIsZero) {
  ThreadSharder sharder(1);
  const auto expect = [&](auto rule) {
    for (int level = 0; level <= static_cast<int>(BestCpuLevel()); ++level) {
      std::vector<float> var(70, 0.5f);
      std::vector<float> accumulator(70);
      std::vector<float> linear(70);
      std::vector<float> grad(70);
      grad[66] = 1e-30f;
      grad[67] = 2.0f;
      grad[68] = std::numeric_limits<float>::quiet_NaN();
      ApplyRule<float>(
          RuleOf<float>(rule, static_cast<CpuLevel>(level)), 1, 70, grad.data(),
          {var.data(), {accumulator.data(), linear.data()}}, sharder);
      for (size_t i = 0; i < 67; ++i) {
        EXPECT_EQ(var[i], 0) << i;
      }
      EXPECT_EQ(linear[66], grad[66]);
      EXPECT_GT(var[67], 0);
      EXPECT_TRUE(std::isnan(var[68]));
    }
  };
  // The learning rate and its power; all other numbers are zero.
  expect(FtrlOfRoots<float>{0.25f, -0.5f, 0, 0, 0, 0});
  expect(Ftrl<float>{0.25f, -0.25f, 0, 0, 0, 0});
}

TEST(AdagradTest, WhatHadNoGradientThatCanBeSquaredStays) {
  ThreadSharder sharder(1);
  const auto expect = [&](auto rule, int64_t row_size) {
    for (int level = 0; level <= static_cast<int>(BestCpuLevel()); ++level) {
      std::vector<float> var(70, 0.5f);
      std::vector<float> accumulator(70);
      std::vector<float> grad(70);
      grad[66] = 1e-30f;
      grad[67] = 2.0f;
      grad[68] = std::numeric_limits<float>::quiet_NaN();
      ApplyRule<float>(RuleOf<float>(rule, static_cast<CpuLevel>(level)),
                       70 / row_size, row_size, grad.data(),
                       {var.data(), {accumulator.data()}}, sharder);
      for (size_t i = 0; i < 67; ++i) {
        EXPECT_EQ(var[i], 0.5f) << i;
      }
      EXPECT_LT(var[67], 0.5f);
      EXPECT_TRUE(std::isnan(var[68]));
    }
  };
  // The learning rate; epsilon is zero.
  expect(Adagrad<float>{0.25f, 0}, 70);
  expect(RowwiseAdagrad<float>{0.25f, 0}, 1);
}

TYPED_TEST(ApplyRuleTest, SparseUpdateMovesEachNamedRowOnceByItsSum) {
  using T = typename TestFixture::T;
  ThreadSharder sharder(3);
  // The last size is larger than what is summed at a time.
  for (const int64_t row_size : {1, 3, 64, 65, 2100}) {
    const int64_t num = row_size > 1000 ? 40 : 2000;
    const int64_t range = num / 8;
    typename TestFixture::RuleTable table(range, row_size, 6);
    const auto before = table;
    const std::vector<int64_t> rows = RandomRows(num, range, 7);
    auto grad = RandomGradient<T>(num * row_size, 8);
    std::map<int64_t, Doubles> sums;
    for (int64_t i = 0; i < num; ++i) {
      Doubles& sum = sums[rows[i]];
      sum.resize(row_size);
      for (int64_t j = 0; j < row_size; ++j) {
        T& g = grad[i * row_size + j];
        g = Narrow<T>(Widen(g) / 16);
        sum[j] += Widen(g);
      }
    }
    SparseApplyRule<T>(RuleOf<T>(this->rule_), GroupsOf(rows), row_size,
                       grad.data(), table.arrays(), sharder);
    for (int64_t row = 0; row < range; ++row) {
      Row expected = before.RowOf(row);
      if (const auto sum = sums.find(row); sum != sums.end()) {
        TestFixture::Case::Update(sum->second, &expected);
      }
      ExpectNear<T>(table.RowOf(row), expected);
    }
  }
}

TYPED_TEST(ApplyRuleTest, BitsDependNeitherOnThreadsNorOnInstructionSet) {
  using T = typename TestFixture::T;
  for (const bool distinct : {false, true}) {
    for (const int64_t row_size : {37, 1500}) {
      const int64_t num = row_size > 1000 ? 200 : 3000;
      const int64_t range = distinct ? num : num / 6;
      std::vector<int64_t> rows = RandomRows(num, range, 9);
      if (distinct) {
        std::iota(rows.begin(), rows.end(), 0);
        std::shuffle(rows.begin(), rows.end(), std::mt19937_64(9));
      }
      const auto sparse_grad = RandomGradient<T>(num * row_size, 10);
      const auto dense_grad = RandomGradient<T>(range * row_size, 11);
      const auto run = [&](int threads, CpuLevel level) {
        ThreadSharder sharder(threads);
        const auto rule = RuleOf<T>(this->rule_, level);
        typename TestFixture::RuleTable table(range, row_size, 12);
        ApplyRule<T>(rule, range, row_size, dense_grad.data(), table.arrays(),
                     sharder);
        SparseApplyRule<T>(rule, GroupsOf(rows), row_size, sparse_grad.data(),
                           table.arrays(), sharder, level);
        return table;
      };
      const auto expected = run(1, CpuLevel::kBaseline);
      for (int level = 0; level <= static_cast<int>(BestCpuLevel()); ++level) {
        for (const int threads : {1, 2, 5}) {
          EXPECT_TRUE(
              expected.SameBits(run(threads, static_cast<CpuLevel>(level))))
              << "level " << level << ", " << threads
              << " threads, distinct: " << distinct;
        }
      }
    }
  }
}

TYPED_TEST(ApplyRuleTest, NothingToDoTouchesNothing) {
  using T = typename TestFixture::T;
  ThreadSharder sharder(2);
  typename TestFixture::RuleTable table(5, 3, 13);
  const auto before = table;
  const auto rule = RuleOf<T>(this->rule_);
  ApplyRule<T>(rule, 0, 3, nullptr, table.arrays(), sharder);
  ApplyRule<T>(rule, 5, 0, nullptr, table.arrays(), sharder);
  SparseApplyRule<T>(rule, GroupsOf({}), 3, nullptr, table.arrays(), sharder);
  SparseApplyRule<T>(rule, GroupsOf({1, 2}), 0, nullptr, table.arrays(),
                     sharder);
  EXPECT_TRUE(table.SameBits(before));
}

// Updates of the same rows by several threads: each is whole, and none is lost.
TYPED_TEST(ApplyRuleTest, ConcurrentSparseUpdatesAreAtomicByRow) {
  using T = typename TestFixture::T;
  constexpr int kThreads = 4;
  // They take longer than it takes to start a thread, so that threads meet.
  constexpr int kUpdates = 1000;
  constexpr int64_t kRows = 20;
  const int64_t row_size = 70;
  // The gradients are equal, so that the order does not matter.
  const std::vector<T> grad((kRows + 3) * row_size, Narrow<T>(0.25f));
  const auto rule = RuleOf<T>(this->rule_);
  const auto update = [&](typename TestFixture::RuleTable* table, int thread) {
    // Some rows are there several times. Of the others, each thread has its
    // own, so that no two lock the same ones together.
    std::vector<int64_t> rows = {2, 0, 2, 1, 2, 0};
    for (int64_t row = 3 + thread; row < kRows; ++row) {
      rows.push_back(row);
    }
    const RowGroups groups = GroupsOf(rows);
    ThreadSharder sharder(1);
    for (int i = 0; i < kUpdates; ++i) {
      SparseApplyRule<T>(rule, groups, row_size, grad.data(), table->arrays(),
                         sharder);
    }
  };
  typename TestFixture::RuleTable expected(kRows, row_size, 14);
  auto table = expected;
  for (int thread = 0; thread < kThreads; ++thread) {
    update(&expected, thread);
  }
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back(update, &table, thread);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(table.SameBits(expected));
}

}  // namespace
}  // namespace tf_syncrep
