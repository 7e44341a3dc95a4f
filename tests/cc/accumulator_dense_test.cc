// DenseGradientSum: right sums in every type, whoever owns the gradients.

#include "tf_syncrep/cc/lib/accumulator_dense.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/thread_sharder.h"

namespace tf_syncrep {
namespace {

const AllocateBuffer kNoMemory = [](int64_t) { return OwnedBuffer{}; };

// How the gradients are given: bit i of `owned` is set if gradient i has an
// owner, and bit i of `waited` if others wait meanwhile.
template <typename T>
std::vector<T> SumOf(const std::vector<std::vector<T>>& gradients,
                     uint32_t owned, int64_t divisor, int num_threads,
                     CpuLevel level = BestCpuLevel(), uint32_t waited = 0) {
  const int64_t size = gradients[0].size();
  ThreadSharder sharder(num_threads);
  CpuDenseGradientSum<T> sum(level);
  for (size_t i = 0; i < gradients.size(); ++i) {
    OwnedBuffer given;
    std::vector<T> copy = gradients[i];
    if (i < 32 && (owned >> i & 1) != 0) {
      given = NewBuffer<T>(size);
      std::copy(copy.begin(), copy.end(), static_cast<T*>(given.data));
    } else {
      given.data = copy.data();
    }
    EXPECT_TRUE(sum.Add(given, size, NewBuffer<SlotType<T>>,
                        i < 32 && (waited >> i & 1) != 0, sharder));
    // Memory that the sum does not own must not be read later.
    std::fill(copy.begin(), copy.end(), T{});
  }
  const OwnedBuffer result = sum.Finish(divisor, NewBuffer<T>, sharder);
  EXPECT_NE(result.owner, nullptr);
  const T* data = static_cast<const T*>(result.data);
  return std::vector<T>(data, data + size);
}

template <typename T>
std::vector<T> Expected(const std::vector<std::vector<T>>& gradients,
                        int64_t divisor) {
  std::vector<T> expected;
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    SlotType<T> sum = Widen(gradients[0][i]);
    for (size_t k = 1; k < gradients.size(); ++k) {
      sum += Widen(gradients[k][i]);
    }
    expected.push_back(Narrow<T>(sum / static_cast<SlotType<T>>(divisor)));
  }
  return expected;
}

template <typename T>
void ExpectSame(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(Widen(a[i]), Widen(b[i])) << "at " << i;
  }
}

template <typename T>
class DenseSumTest : public testing::Test {};
using Types = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(DenseSumTest, Types);

TYPED_TEST(DenseSumTest, AddsInOrderOfArrivalWhoeverOwnsTheGradients) {
  for (const int64_t size : {0, 1, 63, 1000}) {
    for (int num_gradients = 1; num_gradients <= 5; ++num_gradients) {
      const auto gradients = RandomGradients<TypeParam>(num_gradients, size);
      const auto expected = Expected(gradients, num_gradients);
      for (uint32_t owned = 0; owned < 1u << num_gradients; ++owned) {
        ExpectSame(SumOf(gradients, owned, num_gradients, 1), expected);
      }
    }
  }
}

TYPED_TEST(DenseSumTest, AddsInOrderOfArrivalWhoeverWaits) {
  const auto gradients = RandomGradients<TypeParam>(21, 20'003);
  const auto expected = Expected(gradients, 21);
  constexpr uint32_t kAll = ~0u;
  for (const uint32_t waited : {kAll, 0x155555u, 0xff03fu, 0x7ffu, 0x100000u}) {
    for (const uint32_t owned : {kAll, 0xefefeu}) {
      ExpectSame(SumOf(gradients, owned, 21, 2, BestCpuLevel(), waited),
                 expected);
    }
  }
}

TYPED_TEST(DenseSumTest, SameBitsOnAnyThreadsAndInstructionSet) {
  const auto gradients = RandomGradients<TypeParam>(4, 150001);
  const auto expected = Expected(gradients, 3);
  for (const int num_threads : {1, 2, 5}) {
    ExpectSame(SumOf(gradients, 0b1010, 3, num_threads), expected);
  }
  for (const CpuLevel level :
       {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level <= BestCpuLevel()) {
      ExpectSame(SumOf(gradients, 0b0101, 3, 2, level), expected);
    }
  }
}

TYPED_TEST(DenseSumTest, WithoutMemoryNothingChanges) {
  ThreadSharder sharder(1);
  std::vector<TypeParam> gradient = RandomGradient<TypeParam>(10, 1);
  CpuDenseGradientSum<TypeParam> sum;
  EXPECT_FALSE(
      sum.Add({gradient.data(), nullptr}, 10, kNoMemory, false, sharder));
  EXPECT_TRUE(sum.Add({gradient.data(), nullptr}, 10,
                      NewBuffer<SlotType<TypeParam>>, false, sharder));
  const OwnedBuffer result = sum.Finish(1, NewBuffer<TypeParam>, sharder);
  EXPECT_EQ(Widen(static_cast<const TypeParam*>(result.data)[3]),
            Widen(gradient[3]));
}

TEST(DenseSumOfHalfTest, WithoutMemoryForTheResultThereIsNone) {
  ThreadSharder sharder(1);
  std::vector<Half> gradient(10);
  CpuDenseGradientSum<Half> sum;
  ASSERT_TRUE(sum.Add({gradient.data(), nullptr}, 10, NewBuffer<float>, false,
                      sharder));
  EXPECT_EQ(sum.Finish(1, kNoMemory, sharder).owner, nullptr);
}

TEST(DenseSumOfFloatTest, TheResultIsTheFirstGradientsMemory) {
  ThreadSharder sharder(1);
  CpuDenseGradientSum<float> sum;
  const OwnedBuffer first = NewBuffer<float>(100);
  ASSERT_TRUE(sum.Add(first, 100, kNoMemory, false, sharder));
  ASSERT_TRUE(sum.Add(NewBuffer<float>(100), 100, kNoMemory, false, sharder));
  EXPECT_EQ(sum.Finish(2, kNoMemory, sharder).data, first.data);
}

// How many of ten gradients are kept if `others_wait` is the same for each.
int NumKeptAfterTen(bool others_wait) {
  ThreadSharder sharder(1);
  CpuDenseGradientSum<float> sum;
  std::vector<std::weak_ptr<void>> owners;
  for (int i = 0; i < 10; ++i) {
    const OwnedBuffer gradient = NewBuffer<float>(100);
    owners.push_back(gradient.owner);
    EXPECT_TRUE(sum.Add(gradient, 100, kNoMemory, others_wait, sharder));
  }
  int kept = 0;
  for (const auto& owner : owners) {
    kept += owner.expired() ? 0 : 1;
  }
  EXPECT_EQ(sum.held_bytes(), kept * 100 * sizeof(float));
  return kept;
}

TEST(DenseSumOfFloatTest, KeepsNoMoreThanTwoGradientsWhereNobodyWaits) {
  EXPECT_EQ(NumKeptAfterTen(false), 2);
  // Eight were added at once, then the ninth and the tenth were kept.
  EXPECT_EQ(NumKeptAfterTen(true), 2);
}

}  // namespace
}  // namespace tf_syncrep
