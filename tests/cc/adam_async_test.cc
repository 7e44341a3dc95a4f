// AdamAsync on plain memory: its bits stay the same from version to version,
// and what others read stays as it was. apply_rule_test.cc has its formulas.

#include "tf_syncrep/cc/lib/adam_async.h"

#include <cmath>
#include <cstdint>
#include <random>
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

  void Apply(const AdamAsyncUpdate<Slot>& update, const std::vector<T>& grad,
             Sharder& sharder) {
    ApplyAdamAsync<T>(update, static_cast<int64_t>(var.size()), grad.data(),
                      var.data(), m.data(), v.data(), sharder);
  }

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
  for (const auto& update : AllUpdates<SlotType<T>>()) {
    Table<T> table(num_rows * row_size, random);
    for (int step = 0; step < 2; ++step) {
      const auto grad = PortableNumbers<T>(num_rows * row_size, random);
      table.Apply(update, grad, sharder);
      // Some rows occur several times, and some do not occur.
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < num_rows; ++i) {
        rows.push_back(static_cast<int64_t>(random() % num_rows));
      }
      SparseApplyAdamAsync<T>(update, GroupsOf(rows), row_size, grad.data(),
                              table.var.data(), table.m.data(), table.v.data(),
                              sharder);
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
