// Every rule on plain memory: which bits it writes, and who may write beside
// it. tests/ops/test_rule_ops.py compares them with their formulas.

#include "tf_syncrep/cc/lib/rules/apply_rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
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
#include "tf_syncrep/cc/lib/rules/rules.h"

namespace tf_syncrep {
namespace {

// A rule by its name, with its numbers.
struct NamedRule {
  const char* name;
  std::array<double, 6> numbers;
};

constexpr NamedRule kRules[] = {
    {"adagrad", {0.25, 0.125}},
    {"adam_async", {0.125, 0.75, 0.5, 0.25}},
    {"adam_async_nesterov", {0.125, 0.75, 0.5, 0.25}},
    {"adam_async_rmsprop", {0.125, 0.75, 0.5, 0.25}},
    {"ftrl", {0.25, -0.5, 0.5, 0.125, 0.0625, 0.75}},
    {"ftrl", {0.25, -0.75, 0.5, 0.125, 0.0625, 0.75}},
    {"gradient_momentum", {0.25, 0.75}},
    {"gradient_nesterov", {0.25, 0.75}},
    {"momentum", {0.25, 0.75}},
    {"nesterov", {0.25, 0.75}},
    {"rowwise_adagrad", {0.25, 0.125}},
    {"sgd", {0.25}},
};

// Calls `test` with what is known of the rule, and the rule itself.
template <typename T, typename Test>
void With(const NamedRule& named, const Test& test) {
  SCOPED_TRACE(named.name);
  std::array<SlotType<T>, 6> numbers;
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<SlotType<T>>(named.numbers[i]);
  }
  WithRule(named.name, numbers.data(),
           [&](const auto& rule) { test(*FindRule(named.name), rule); });
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

// A table with the slots of a rule.
template <typename T>
struct Table {
  using Slot = SlotType<T>;

  Table(const RuleInfo& info, int64_t num_rows, int64_t row_size,
        std::mt19937_64& random)
      : var(PortableNumbers<T>(num_rows * row_size, random)) {
    const int64_t size = num_rows * (info.is_rowwise ? 1 : row_size);
    for (const std::string_view name : info.slots) {
      slots.push_back(PortableNumbers<Slot>(size, random));
      if (name == "accumulator" || name == "v") {  // sums of squares
        for (Slot& x : slots.back()) {
          x = std::abs(x);
        }
      }
    }
  }

  RuleArrays<T> arrays() {
    RuleArrays<T> arrays = {var.data()};
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      arrays.slots[slot] = slots[slot].data();
    }
    return arrays;
  }

  bool SameBits(const Table& other) const {
    bool same = Same(var, other.var);
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      same &= Same(slots[slot], other.slots[slot]);
    }
    return same;
  }

  std::vector<T> var;
  std::vector<std::vector<Slot>> slots;

 private:
  template <typename Element>
  static bool Same(const std::vector<Element>& a,
                   const std::vector<Element>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0;
  }
};

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

template <typename T>
class ApplyRuleTest : public testing::Test {};
using Types = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(ApplyRuleTest, Types);

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

TYPED_TEST(ApplyRuleTest, BitsDependNeitherOnThreadsNorOnInstructionSet) {
  using T = TypeParam;
  const auto expect = [](const RuleInfo& info, const auto& rule, bool distinct,
                         int64_t row_size) {
    const int64_t num = row_size > 1000 ? 200 : 3000;
    const int64_t range = distinct ? num : num / 6;
    std::mt19937_64 random(9);
    std::vector<int64_t> rows = RandomRows(num, range, 9);
    if (distinct) {
      std::iota(rows.begin(), rows.end(), 0);
      std::shuffle(rows.begin(), rows.end(), random);
    }
    const auto sparse_grad = PortableNumbers<T>(num * row_size, random);
    const auto dense_grad = PortableNumbers<T>(range * row_size, random);
    const auto run = [&](int threads, CpuLevel level) {
      ThreadSharder sharder(threads);
      std::mt19937_64 of_table(1);
      Table<T> table(info, range, row_size, of_table);
      const auto loops = RuleOf<T>(rule, level);
      ApplyRule<T>(loops, range, row_size, dense_grad.data(), table.arrays(),
                   sharder);
      SparseApplyRule<T>(loops, GroupsOf(rows), row_size, sparse_grad.data(),
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
  };
  for (const NamedRule& named : kRules) {
    With<T>(named, [&](const RuleInfo& info, const auto& rule) {
      for (const bool distinct : {false, true}) {
        for (const int64_t row_size : {37, 1500}) {
          expect(info, rule, distinct, row_size);
        }
      }
    });
  }
}

TYPED_TEST(ApplyRuleTest, NothingToDoTouchesNothing) {
  using T = TypeParam;
  for (const NamedRule& named : kRules) {
    With<T>(named, [](const RuleInfo& info, const auto& rule) {
      ThreadSharder sharder(2);
      std::mt19937_64 random(1);
      Table<T> table(info, 5, 3, random);
      const auto before = table;
      const auto loops = RuleOf<T>(rule);
      ApplyRule<T>(loops, 0, 3, nullptr, table.arrays(), sharder);
      ApplyRule<T>(loops, 5, 0, nullptr, table.arrays(), sharder);
      SparseApplyRule<T>(loops, GroupsOf({}), 3, nullptr, table.arrays(),
                         sharder);
      SparseApplyRule<T>(loops, GroupsOf({1, 2}), 0, nullptr, table.arrays(),
                         sharder);
      EXPECT_TRUE(table.SameBits(before));
    });
  }
}

// Updates of the same rows by several threads: each is whole, and none is lost.
TYPED_TEST(ApplyRuleTest, ConcurrentSparseUpdatesAreAtomicByRow) {
  using T = TypeParam;
  constexpr int kThreads = 4;
  // They take longer than it takes to start a thread, so that threads meet.
  constexpr int kUpdates = 1000;
  constexpr int64_t kRows = 20;
  constexpr int64_t kRowSize = 70;
  // The gradients are equal, so that the order does not matter.
  const std::vector<T> grad((kRows + 3) * kRowSize, Narrow<T>(0.25f));
  const auto expect = [&](const RuleInfo& info, const auto& rule) {
    const auto loops = RuleOf<T>(rule);
    const auto update = [&](Table<T>* table, int thread) {
      // Some rows are there several times. Of the others, each thread has its
      // own, so that no two lock the same ones together.
      std::vector<int64_t> rows = {2, 0, 2, 1, 2, 0};
      for (int64_t row = 3 + thread; row < kRows; ++row) {
        rows.push_back(row);
      }
      const RowGroups groups = GroupsOf(rows);
      ThreadSharder sharder(1);
      for (int i = 0; i < kUpdates; ++i) {
        SparseApplyRule<T>(loops, groups, kRowSize, grad.data(),
                           table->arrays(), sharder);
      }
    };
    std::mt19937_64 random(1);
    Table<T> expected(info, kRows, kRowSize, random);
    auto table = expected;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      update(&expected, thread);
      threads.emplace_back(update, &table, thread);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_TRUE(table.SameBits(expected));
  };
  for (const NamedRule& named : kRules) {
    With<T>(named, expect);
  }
}

// FNV-1a.
template <typename Element>
void AddToDigest(const std::vector<Element>& array, uint64_t* digest) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(array.data());
  for (size_t i = 0; i < array.size() * sizeof(Element); ++i) {
    *digest = (*digest ^ bytes[i]) * 0x100000001b3;
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

// The bits of a training by AdamAsync do not change from one version to the
// next: these are of the loops that it had before it became a rule among
// others.
TYPED_TEST(ApplyRuleTest, BitsOfAdamAsyncAreThoseThatWereRecorded) {
  using T = TypeParam;
  constexpr int64_t kRows = 300;
  constexpr int64_t kRowSize = 37;
  uint64_t digest = 0xcbf29ce484222325;
  std::mt19937_64 random(14);
  ThreadSharder sharder(2);
  for (const NamedRule& named :
       {NamedRule{"adam_async", {0.01, 0.9, 0.99, 1e-6}},
        {"adam_async_nesterov", {0.01, 0.9, 0.99, 1e-6}},
        {"adam_async_rmsprop", {0.01, 0.5, 0.99, 1e-6}},
        {"adam_async_rmsprop", {0.01, 0.0, 0.99, 1e-6}}}) {
    With<T>(named, [&](const RuleInfo& info, const auto& rule) {
      Table<T> table(info, kRows, kRowSize, random);
      for (int step = 0; step < 2; ++step) {
        const auto grad = PortableNumbers<T>(kRows * kRowSize, random);
        // Some rows occur several times, and some do not occur.
        std::vector<int64_t> rows;
        for (int64_t i = 0; i < kRows; ++i) {
          rows.push_back(static_cast<int64_t>(random() % kRows));
        }
        ApplyRule(RuleOf<T>(rule), kRows, kRowSize, grad.data(), table.arrays(),
                  sharder);
        SparseApplyRule(RuleOf<T>(rule), GroupsOf(rows), kRowSize, grad.data(),
                        table.arrays(), sharder);
      }
      AddToDigest(table.var, &digest);
      for (const auto& slot : table.slots) {
        AddToDigest(slot, &digest);
      }
    });
  }
  EXPECT_EQ(digest, kRecordedDigest<T>);
}

TEST(AdamAsyncStepSizeTest, CorrectsTheBias) {
  EXPECT_DOUBLE_EQ(AdamAsyncStepSize(0.1, 0.9, 0.999),
                   0.1 * std::sqrt(1 - 0.999) / (1 - 0.9));
  EXPECT_DOUBLE_EQ(AdamAsyncStepSize(0.1, 0.0, 0.0), 0.1);
}

}  // namespace
}  // namespace tf_syncrep
