// AdamAsync on plain memory: its bits stay the same from version to version,
// and what others read stays as it was. apply_rule_test.cc has its formulas.

#include "tf_syncrep/cc/lib/rules/adam_async.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/rules/apply_rule.h"
#include "tf_syncrep/cc/lib/rules/rules.h"

namespace tf_syncrep {
namespace {

// A rule by its name, with its numbers.
template <typename Slot>
struct NamedRule {
  const char* name;
  std::array<Slot, 4> numbers;
};

template <typename Slot>
std::vector<NamedRule<Slot>> AllRules() {
  std::vector<NamedRule<Slot>> rules;
  for (const auto& [name, beta1] : {std::pair("adam_async", 0.9),
                                    {"adam_async_nesterov", 0.9},
                                    {"adam_async_rmsprop", 0.5},
                                    {"adam_async_rmsprop", 0.0}}) {
    rules.push_back({name, {Slot(0.01), Slot(beta1), Slot(0.99), Slot(1e-6)}});
  }
  return rules;
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

constexpr uint64_t kEmptyDigest = 0xcbf29ce484222325;

template <typename Element>
void AddToDigest(const std::vector<Element>& array, uint64_t* digest) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(array.data());
  for (size_t i = 0; i < array.size() * sizeof(Element); ++i) {
    *digest = (*digest ^ bytes[i]) * 0x100000001b3;  // FNV-1a
  }
}

// A variable with its moments.
template <typename T>
struct Table {
  using Slot = SlotType<T>;

  Table(int64_t size, std::mt19937_64& random)
      : var(PortableNumbers<T>(size, random)),
        m(PortableNumbers<Slot>(size, random)),
        v(PortableNumbers<Slot>(size, random)) {
    for (Slot& x : v) {
      x = std::abs(x);
    }
  }

  RuleArrays<T> arrays() { return {var.data(), {m.data(), v.data()}}; }

  void AddTo(uint64_t* digest) const {
    AddToDigest(var, digest);
    AddToDigest(m, digest);
    AddToDigest(v, digest);
  }

  std::vector<T> var;
  std::vector<Slot> m;
  std::vector<Slot> v;
};

template <typename T>
class AdamAsyncTest : public testing::Test {};
using AllTypes = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(AdamAsyncTest, AllTypes);

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
  const int64_t num_rows = 300;
  const int64_t row_size = 37;
  uint64_t digest = kEmptyDigest;
  std::mt19937_64 random(14);
  ThreadSharder sharder(2);
  for (const auto& [name, numbers] : AllRules<SlotType<T>>()) {
    Table<T> table(num_rows * row_size, random);
    for (int step = 0; step < 2; ++step) {
      const auto grad = PortableNumbers<T>(num_rows * row_size, random);
      // Some rows occur several times, and some do not occur.
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < num_rows; ++i) {
        rows.push_back(static_cast<int64_t>(random() % num_rows));
      }
      WithRule(name, numbers.data(), [&](const auto& rule) {
        ApplyRule(RuleOf<T>(rule), num_rows, row_size, grad.data(),
                  table.arrays(), sharder);
        SparseApplyRule(RuleOf<T>(rule), GroupsOf(rows), row_size, grad.data(),
                        table.arrays(), sharder);
      });
    }
    table.AddTo(&digest);
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
