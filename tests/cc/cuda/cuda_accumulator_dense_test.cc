// Compares dense sums in the GPU's memory, whose kernel is emulated on a CPU,
// with those in the host's memory: they must agree in every bit.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/cuda/cuda_emulation.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_dense.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_dense_kernels.h"

namespace tf_syncrep {
namespace {

// The state of the emulated GPU.
int current_device = 0;
int num_passes = 0;
GpuError next_error = nullptr;

}  // namespace

GpuError UseGpu(int device) {
  current_device = device;
  return nullptr;
}

// The same as in accumulator_dense.cu, with an emulated kernel.
template <typename T>
GpuError RunDensePassOnGpu(DensePass pass, const DenseArrays<T>& arrays,
                           GpuStream /*stream*/) {
  if (next_error != nullptr || arrays.size == 0) {
    return next_error;
  }
  const auto is_aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  const bool has_vectors = is_aligned(arrays.a) && is_aligned(arrays.b) &&
                           is_aligned(arrays.sum) && is_aligned(arrays.out);
  gpu::VisitDensePass(pass, [&](auto constant) {
    constexpr DensePass kPass = decltype(constant)::value;
    cuda_emulation::Launch(
        /*num_blocks=*/2, gpu::kBlockThreads,
        has_vectors ? gpu::DensePassKernel<kPass, gpu::kVectorWidth<T>, T>
                    : gpu::DensePassKernel<kPass, 1, T>,
        arrays);
  });
  ++num_passes;
  return nullptr;
}

namespace {

constexpr GpuQueue kQueue = {nullptr, 3};

// Adds gradient i, which is given away if bit i of `owned` is set. Otherwise it
// begins `offset` elements after an aligned address.
template <typename T>
void AddGradient(DenseGradientSum<T>& sum, int64_t size, uint32_t i,
                 uint32_t owned, int64_t offset) {
  ThreadSharder sharder(1);
  const std::vector<T> gradient = RandomGradient<T>(size, i);
  if ((owned >> i & 1) != 0) {
    const OwnedBuffer given = NewBuffer<T>(size);
    std::copy(gradient.begin(), gradient.end(), static_cast<T*>(given.data));
    ASSERT_TRUE(sum.Add(given, size, NewBuffer<SlotType<T>>,
                        /*others_wait=*/true, sharder));
    return;
  }
  std::vector<T> read(offset + size);
  std::copy(gradient.begin(), gradient.end(), read.begin() + offset);
  ASSERT_TRUE(sum.Add({read.data() + offset, nullptr}, size,
                      NewBuffer<SlotType<T>>, /*others_wait=*/true, sharder));
  // Memory that the sum does not own must not be read later.
  std::fill(read.begin(), read.end(), T{});
}

template <typename T>
void ExpectSameResult(DenseGradientSum<T>& actual,
                      DenseGradientSum<T>& expected, int64_t size,
                      int64_t divisor) {
  ThreadSharder sharder(1);
  const OwnedBuffer a = actual.Finish(divisor, NewBuffer<T>, sharder);
  const OwnedBuffer b = expected.Finish(divisor, NewBuffer<T>, sharder);
  ASSERT_NE(a.owner, nullptr);
  EXPECT_EQ(actual.error(), nullptr);
  EXPECT_TRUE(size == 0 || std::memcmp(a.data, b.data, size * sizeof(T)) == 0);
}

template <typename T>
class CudaDenseSumTest : public testing::Test {};
using AllTypes = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(CudaDenseSumTest, AllTypes);

TYPED_TEST(CudaDenseSumTest, SumsAndMeansHaveTheBitsOfTheCpu) {
  for (const int64_t size : {0, 7, 2503}) {
    // Gradients are added one by one, in pairs, and with a last one that is not
    // in the sum yet.
    for (const uint32_t owned : {0u, 0b1010u, 0b11111u}) {
      for (const uint32_t num_gradients : {1, 5}) {
        const int64_t divisor = size == 7 ? 1 : num_gradients;
        GpuDenseGradientSum<TypeParam> actual(kQueue);
        CpuDenseGradientSum<TypeParam> expected;
        for (uint32_t i = 0; i < num_gradients; ++i) {
          AddGradient<TypeParam>(actual, size, i, owned, /*offset=*/0);
          AddGradient<TypeParam>(expected, size, i, owned, /*offset=*/0);
        }
        ExpectSameResult(actual, expected, size, divisor);
      }
    }
  }
}

TYPED_TEST(CudaDenseSumTest, TakesGradientsAtAnyAddress) {
  GpuDenseGradientSum<TypeParam> actual(kQueue);
  CpuDenseGradientSum<TypeParam> expected;
  for (uint32_t i = 0; i < 3; ++i) {
    AddGradient<TypeParam>(actual, 1001, i, 0, /*offset=*/1);
    AddGradient<TypeParam>(expected, 1001, i, 0, /*offset=*/0);
  }
  ExpectSameResult(actual, expected, 1001, 3);
}

TEST(CudaDenseSumOfFloatTest, TwoGradientsThatAreOursTakeOnePass) {
  GpuDenseGradientSum<float> sum(kQueue);
  num_passes = 0;
  current_device = 0;
  for (uint32_t i = 0; i < 5; ++i) {
    AddGradient<float>(sum, 100, i, ~0u, 0);
  }
  EXPECT_EQ(num_passes, 2);
  EXPECT_EQ(current_device, kQueue.device);
}

TEST(CudaDenseSumOfFloatTest, AFailedLaunchIsToldToEveryoneAfter) {
  GpuDenseGradientSum<float> sum(kQueue);
  AddGradient<float>(sum, 10, 0, 0, 0);
  EXPECT_EQ(sum.error(), nullptr);
  next_error = "no GPU";
  AddGradient<float>(sum, 10, 1, 0, 0);
  next_error = nullptr;
  EXPECT_STREQ(sum.error(), "no GPU");
  AddGradient<float>(sum, 10, 2, 0, 0);
  EXPECT_STREQ(sum.error(), "no GPU");
}

}  // namespace
}  // namespace tf_syncrep
