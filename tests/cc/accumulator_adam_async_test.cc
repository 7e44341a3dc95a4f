// Compares AdamAsync on blocks of an accumulator's mean with AdamAsync on the
// whole mean.

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/adam_async.h"

namespace tf_syncrep {
namespace {

// A variable and its moments.
template <typename T>
struct Variable {
  using Slot = SlotType<T>;

  explicit Variable(int64_t size)
      : var(RandomGradient<T>(size, 100)), m(size), v(size) {
    for (int64_t i = 0; i < size; ++i) {
      m[i] = Slot(i % 13) / 8;
      v[i] = Slot(i % 7) / 16;
    }
  }

  std::vector<T> var;
  std::vector<Slot> m;
  std::vector<Slot> v;
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
class AccumulatorAdamAsyncTest : public testing::Test {};
using Types = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(AccumulatorAdamAsyncTest, Types);

// The first of the gradients; `num_waiting` of them are kept for one pass.
template <typename T>
void Push(CpuDenseGradientSum<T>& sum, int num_gradients, int num_waiting,
          const std::vector<std::vector<T>>& gradients, Sharder& sharder) {
  for (int i = 0; i < num_gradients; ++i) {
    const auto owner = std::make_shared<std::vector<T>>(gradients[i]);
    ASSERT_TRUE(
        sum.Add({owner->data(), owner}, static_cast<int64_t>(owner->size()),
                NewBuffer<SlotType<T>>,
                /*others_wait=*/i >= num_gradients - num_waiting, sharder));
  }
}

TYPED_TEST(AccumulatorAdamAsyncTest, SameBitsAsTheMeanAndThenTheUpdate) {
  using T = TypeParam;
  using Slot = SlotType<T>;
  struct Case {
    int num_gradients;
    int num_waiting;
    int64_t divisor;
  };
  // None, one, two, and as many as possible are kept; and there is a sum.
  constexpr std::array<Case, 6> kCases = {
      {{1, 0, 1}, {3, 0, 3}, {4, 0, 4}, {5, 2, 5}, {9, 7, 9}, {4, 1, 1}}};
  for (const AdamAsyncFormula formula :
       {AdamAsyncFormula::kAdam, AdamAsyncFormula::kNesterov}) {
    const AdamAsyncUpdate<Slot> update = {formula, Slot(0.01), Slot(0.9),
                                          Slot(0.999), Slot(1e-7)};
    for (const int64_t size : {1, 255, 256, 70001}) {
      const auto gradients = RandomGradients<T>(9, size);
      for (const Case& c : kCases) {
        for (const int num_threads : {1, 2, 3}) {
          ThreadSharder sharder(num_threads);
          Variable<T> expected(size);
          CpuDenseGradientSum<T> whole;
          Push(whole, c.num_gradients, c.num_waiting, gradients, sharder);
          const OwnedBuffer mean =
              whole.Finish(c.divisor, NewBuffer<T>, sharder);
          ApplyAdamAsync<T>(update, size, static_cast<const T*>(mean.data), {},
                            expected.var.data(), expected.m.data(),
                            expected.v.data(), sharder);

          Variable<T> updated(size);
          CpuDenseGradientSum<T> sum;
          Push(sum, c.num_gradients, c.num_waiting, gradients, sharder);
          ApplyAdamAsyncInBlocks<T>(
              update, size,
              [&](int64_t begin, int64_t n, T* scratch) {
                return sum.Block(c.divisor, begin, n, scratch);
              },
              {}, updated.var.data(), updated.m.data(), updated.v.data(),
              sharder);
          ASSERT_TRUE(SameBits(updated.var, expected.var));
          ASSERT_TRUE(SameBits(updated.m, expected.m));
          ASSERT_TRUE(SameBits(updated.v, expected.v));
          EXPECT_NE(sum.Release().owner, nullptr);
          EXPECT_EQ(sum.held_bytes(), 0);
        }
      }
    }
  }
}

TYPED_TEST(AccumulatorAdamAsyncTest, LeavesWhatIsReadAsItWas) {
  using T = TypeParam;
  using Slot = SlotType<T>;
  constexpr int64_t kSize = 1000;
  const AdamAsyncUpdate<Slot> update = {AdamAsyncFormula::kAdam, Slot(0.01),
                                        Slot(0.9), Slot(0.999), Slot(1e-7)};
  ThreadSharder sharder(1);
  const std::vector<T> gradient = RandomGradient<T>(kSize, 1);
  Variable<T> expected(kSize);
  ApplyAdamAsync<T>(update, kSize, gradient.data(), {}, expected.var.data(),
                    expected.m.data(), expected.v.data(), sharder);
  const Variable<T> before(kSize);
  const Variable<T> untouched(kSize);
  Variable<T> updated(kSize);
  updated.var.assign(kSize, Narrow<T>(Slot(7)));
  updated.m.assign(kSize, Slot(7));
  ApplyAdamAsyncInBlocks<T>(
      update, kSize,
      [&](int64_t begin, int64_t, T*) { return gradient.data() + begin; },
      {before.var.data(), before.m.data(), nullptr}, updated.var.data(),
      updated.m.data(), updated.v.data(), sharder);
  EXPECT_TRUE(SameBits(updated.var, expected.var));
  EXPECT_TRUE(SameBits(updated.m, expected.m));
  EXPECT_TRUE(SameBits(updated.v, expected.v));
  EXPECT_TRUE(SameBits(before.var, untouched.var));
  EXPECT_TRUE(SameBits(before.m, untouched.m));
}

}  // namespace
}  // namespace tf_syncrep
