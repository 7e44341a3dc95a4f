// Compares the CUDA kernels of AdamAsync, emulated on a CPU, with its CPU code:
// they must agree in every bit.

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/cuda/cuda_emulation.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/cuda/adam_async_kernels.h"
#include "tf_syncrep/cc/lib/rules/apply_rule.h"
#include "tf_syncrep/cc/lib/rules/rules.h"

namespace tf_syncrep {
namespace {

using cuda_emulation::Launch;
using gpu::kBlockThreads;
using gpu::kVectorWidth;

constexpr AdamAsyncFormula kFormulas[] = {AdamAsyncFormula::kAdam,
                                          AdamAsyncFormula::kNesterov,
                                          AdamAsyncFormula::kRmsprop};

template <typename T>
std::vector<T> RandomArray(int64_t size, uint64_t seed, float low) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(low, 1);
  std::vector<T> array;
  for (int64_t i = 0; i < size; ++i) {
    array.push_back(Narrow<T>(uniform(random)));
  }
  return array;
}

// A variable with its slots and hyper-parameters.
template <typename T>
struct State {
  using Slot = SlotType<T>;

  explicit State(int64_t size, AdamAsyncFormula formula)
      : formula(formula),
        var(RandomArray<T>(size, 1, -1)),
        m(RandomArray<Slot>(size, 2, -1)),
        v(RandomArray<Slot>(size, 3, 0)) {}

  GpuAdamAsync<T> OnGpu() {
    return {formula, var.data(), m.data(), v.data(), &beta1_power, &beta2_power,
            &lr,     &beta1,     &beta2,   &epsilon, momentum};
  }

  // Takes a step on the CPU, which also advances the powers. `apply` is called
  // with the rule, the arrays and a sharder.
  template <typename Apply>
  void Step(const Apply& apply) {
    Slot numbers[] = {lr, beta1, beta2, epsilon};
    if (formula != AdamAsyncFormula::kRmsprop) {
      numbers[0] = AdamAsyncStepSize(lr, beta1_power, beta2_power);
      beta1_power *= beta1;
      beta2_power *= beta2;
    } else if (momentum >= 0) {
      numbers[1] = Slot(momentum);
    }
    ThreadSharder sharder(1);
    const RuleArrays<T> arrays = {var.data(), {m.data(), v.data()}};
    WithRule(
        kAdamAsyncNames[static_cast<int>(formula)], numbers,
        [&](const auto& rule) { apply(RuleOf<T>(rule), arrays, sharder); });
  }

  void DenseStep(const std::vector<T>& grad) {
    Step([&](const auto& rule, const auto& arrays, Sharder& sharder) {
      ApplyRule(rule, static_cast<int64_t>(grad.size()), /*row_size=*/1,
                grad.data(), arrays, sharder);
    });
  }

  void SparseStep(const std::vector<int64_t>& indices, int64_t row_size,
                  const std::vector<T>& grad) {
    Step([&](const auto& rule, const auto& arrays, Sharder& sharder) {
      SparseApplyRule(rule, GroupsOf(indices), row_size, grad.data(), arrays,
                      sharder);
    });
  }

  void ExpectSameBits(const State& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() ||
              std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    EXPECT_TRUE(same(var, other.var));
    EXPECT_TRUE(same(m, other.m));
    EXPECT_TRUE(same(v, other.v));
    EXPECT_EQ(beta1_power, other.beta1_power);
    EXPECT_EQ(beta2_power, other.beta2_power);
  }

  AdamAsyncFormula formula;
  std::vector<T> var;
  std::vector<Slot> m;
  std::vector<Slot> v;
  Slot beta1_power = Slot(0.81);
  Slot beta2_power = Slot(0.98);
  Slot lr = Slot(0.01);
  Slot beta1 = Slot(0.9);
  Slot beta2 = Slot(0.99);
  Slot epsilon = Slot(1e-6);
  float momentum = -1;
};

// Every second index is one of few rows: some occur hundreds of times.
std::vector<int64_t> SkewedIndices(int64_t size, int64_t num_rows) {
  std::mt19937_64 random(4);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < size; ++i) {
    const uint64_t row = random() % num_rows;
    indices.push_back(
        random() % 2 == 0 ? row * row % std::min<int64_t>(num_rows, 7) : row);
  }
  return indices;
}

// Does what SparseApplyAdamAsyncOnGpu() does, with emulated kernels.
template <int kWidth, typename T, typename Index>
GpuBadIndex SparseApply(const GpuAdamAsync<T>& arguments, int64_t num_rows,
                        int64_t row_size, const std::vector<Index>& indices,
                        const std::vector<T>& grad, bool validate,
                        int num_blocks, int arrival_counter = 5) {
  const int64_t n = static_cast<int64_t>(indices.size());
  const GpuSparseRows rows = {num_rows, row_size, n, indices.data(),
                              sizeof(Index) == 8};
  GpuBadIndex bad_index = {-1, -1};
  GpuBadIndex* const to_set = validate ? &bad_index : nullptr;
  std::vector<uint64_t> keys(n);
  std::vector<uint32_t> positions(n);
  Launch(num_blocks, kBlockThreads, gpu::PrepareRowsKernel, rows, keys.data(),
         positions.data(), to_set);
  const uint64_t mask = gpu::NumKeyBits(num_rows) == 64
                            ? ~uint64_t{0}
                            : (uint64_t{1} << gpu::NumKeyBits(num_rows)) - 1;
  std::stable_sort(positions.begin(), positions.end(),
                   [&](uint32_t a, uint32_t b) {
                     return (keys[a] & mask) < (keys[b] & mask);
                   });
  std::vector<uint64_t> sorted_keys;
  for (const uint32_t position : positions) {
    sorted_keys.push_back(keys[position]);
  }
  const gpu::RowsArguments<T> row_arguments = {
      arguments,
      rows,
      grad.data(),
      sorted_keys.data(),
      positions.data(),
      to_set,
      gpu::PlanRows(n, row_size, kWidth, num_blocks),
      arrival_counter};
  Launch(num_blocks, kBlockThreads, gpu::RowsKernel<kWidth, T>, row_arguments);
  return bad_index;
}

template <typename T>
class CudaAdamAsyncTest : public testing::Test {};
using AllTypes = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(CudaAdamAsyncTest, AllTypes);

TYPED_TEST(CudaAdamAsyncTest, DenseHasTheBitsOfTheCpu) {
  using T = TypeParam;
  for (const AdamAsyncFormula formula : kFormulas) {
    for (const int64_t size : {0, 7, 9001}) {
      const std::vector<T> grad = RandomArray<T>(size, 10, -1);
      State<T> expected(size, formula);
      expected.DenseStep(grad);
      State<T> vectors(size, formula);
      Launch(/*num_blocks=*/3, kBlockThreads,
             gpu::DenseKernel<kVectorWidth<T>, T>, vectors.OnGpu(), 3, size,
             grad.data());
      vectors.ExpectSameBits(expected);
      State<T> scalars(size, formula);
      Launch(/*num_blocks=*/2, kBlockThreads, gpu::DenseKernel<1, T>,
             scalars.OnGpu(), 3, size, grad.data());
      scalars.ExpectSameBits(expected);
      EXPECT_EQ(gpu::arrival_counters[3], 0u);
    }
  }
}

TYPED_TEST(CudaAdamAsyncTest, SparseHasTheBitsOfTheCpu) {
  using T = TypeParam;
  const int64_t num_rows = 300;
  // Each formula has a row size; they include sizes with and without vectors.
  constexpr int64_t kRowSizes[] = {0, 72, 3};
  for (int i = 0; i < 3; ++i) {
    const AdamAsyncFormula formula = kFormulas[i];
    const int64_t row_size = kRowSizes[i];
    for (const int64_t n : {31, 2500}) {
      const std::vector<int64_t> indices = SkewedIndices(n, num_rows);
      const std::vector<T> grad = RandomArray<T>(n * row_size, 10, -1);
      State<T> expected(num_rows * row_size, formula);
      expected.SparseStep(indices, row_size, grad);
      State<T> scalars(num_rows * row_size, formula);
      SparseApply<1>(scalars.OnGpu(), num_rows, row_size,
                     std::vector<int32_t>(indices.begin(), indices.end()), grad,
                     /*validate=*/true, /*num_blocks=*/2);
      scalars.ExpectSameBits(expected);
      EXPECT_EQ(gpu::arrival_counters[5], 0u);
      if (row_size % kVectorWidth<T> == 0) {
        State<T> vectors(num_rows * row_size, formula);
        SparseApply<kVectorWidth<T>>(vectors.OnGpu(), num_rows, row_size,
                                     indices, grad, /*validate=*/false,
                                     /*num_blocks=*/5);
        vectors.ExpectSameBits(expected);
      }
    }
  }
}

TEST(CudaSparseTest, RmspropTakesItsOwnMomentum) {
  const std::vector<int64_t> indices = {3, 0, 3};
  const std::vector<float> grad = RandomArray<float>(12, 10, -1);
  for (const float momentum : {0.0f, 0.5f}) {
    State<float> expected(20, AdamAsyncFormula::kRmsprop);
    expected.momentum = momentum;
    expected.SparseStep(indices, 4, grad);
    State<float> actual(20, AdamAsyncFormula::kRmsprop);
    actual.momentum = momentum;
    SparseApply<4>(actual.OnGpu(), 5, 4, indices, grad, true, 1);
    actual.ExpectSameBits(expected);
  }
}

TEST(CudaSparseTest, ABadIndexIsNamedAndNothingIsWritten) {
  for (const int64_t bad : {int64_t{300}, int64_t{-1}, int64_t{1} << 40}) {
    std::vector<int64_t> indices = SkewedIndices(2000, 300);
    indices[1777] = bad;
    indices[1900] = -7;
    const std::vector<float> grad = RandomArray<float>(8000, 10, -1);
    State<float> state(1200, AdamAsyncFormula::kAdam);
    const GpuBadIndex found = SparseApply<4>(state.OnGpu(), 300, 4, indices,
                                             grad, /*validate=*/true, 3);
    EXPECT_EQ(found.position, 1777);
    EXPECT_EQ(found.index, bad);
    state.ExpectSameBits(State<float>(1200, AdamAsyncFormula::kAdam));
    EXPECT_EQ(gpu::arrival_counters[5], 0u);
  }
}

TEST(CudaSparseTest, WithoutValidationBadIndicesAreIgnored) {
  std::vector<int64_t> indices = SkewedIndices(2000, 300);
  for (int64_t i = 0; i < 2000; i += 3) {
    indices[i] = i % 2 == 0 ? -i - 1 : 300 + i;
  }
  const std::vector<float> grad = RandomArray<float>(8000, 10, -1);
  // There is one more row than in the table, which must not change.
  State<float> actual(1204, AdamAsyncFormula::kAdam);
  SparseApply<4>(actual.OnGpu(), 300, 4, indices, grad, /*validate=*/false, 3);
  for (int64_t& index : indices) {
    index = index < 300 ? index : -1;
  }
  State<float> expected(1204, AdamAsyncFormula::kAdam);
  expected.SparseStep(indices, 4, grad);
  actual.ExpectSameBits(expected);
}

TEST(CudaSparseTest, RowsBeyondTwoBillionElementsAreReached) {
  // Untouched memory takes no pages: 40M rows of 64 elements cost three pages.
  constexpr int64_t kRows = 40'000'000;
  constexpr int64_t kRowSize = 64;
  const auto map = [](int64_t bytes) {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  constexpr int64_t kSize = kRows * kRowSize;
  void* const memory[] = {map(2 * kSize), map(4 * kSize), map(4 * kSize)};
  for (void* const part : memory) {
    ASSERT_NE(part, MAP_FAILED);
  }
  State<BFloat16> numbers(0, AdamAsyncFormula::kAdam);
  GpuAdamAsync<BFloat16> arguments = numbers.OnGpu();
  arguments.var = static_cast<BFloat16*>(memory[0]);
  arguments.m = static_cast<float*>(memory[1]);
  arguments.v = static_cast<float*>(memory[2]);
  const std::vector<int64_t> indices = {kRows - 1, 34'000'000};
  const std::vector<BFloat16> grad(2 * kRowSize, Narrow<BFloat16>(1.0f));
  SparseApply<8>(arguments, kRows, kRowSize, indices, grad, true, 1);
  for (const int64_t row : indices) {
    for (int64_t i = 0; i < kRowSize; ++i) {
      ASSERT_NEAR(arguments.m[row * kRowSize + i], 0.1, 1e-6);
      ASSERT_LT(Widen(arguments.var[row * kRowSize + i]), 0);
    }
  }
  EXPECT_EQ(arguments.m[(kRows - 1) * kRowSize - 1], 0);
  munmap(memory[0], 2 * kSize);
  munmap(memory[1], 4 * kSize);
  munmap(memory[2], 4 * kSize);
}

TEST(CudaSparseTest, EndOfRowFindsRunsOfEveryLength) {
  for (const int64_t length : {1, 255, 256, 257, 65537, 70000}) {
    for (const int64_t after : {0, 1000}) {
      std::vector<uint64_t> keys(3, 1);
      keys.resize(3 + length, 2);
      keys.resize(3 + length + after, 3);
      std::vector<int64_t> found(kBlockThreads);
      Launch(1, kBlockThreads, [&] {
        found[threadIdx.x] =
            gpu::EndOfRow(keys.data(), 3, static_cast<int64_t>(keys.size()));
      });
      for (const int64_t end : found) {
        ASSERT_EQ(end, 3 + length) << after;
      }
    }
  }
}

TEST(CudaSparseTest, EveryPlaceBelongsToOneGroup) {
  for (const int64_t n : {1, 100, 5000, 1000000}) {
    for (const int64_t row_size : {0, 1, 4, 16, 64, 100, 1000}) {
      for (const int width : {1, 4, 8}) {
        for (const int max_blocks : {1, 7, 1056}) {
          const gpu::RowsPlan plan =
              gpu::PlanRows(n, row_size, width, max_blocks);
          ASSERT_EQ(kBlockThreads % plan.lanes, 0);
          ASSERT_LE(plan.lanes, 32);
          ASSERT_GE(plan.places_per_group, 1);
          ASSERT_LE(plan.places_per_group, gpu::kMaxPlacesPerGroup);
          // The kernel's list must have room for the long rows of a chunk.
          ASSERT_LE((gpu::ChunkSize(plan) - 1) / gpu::kLongRow + 1,
                    gpu::kMaxLongRowsPerChunk);
        }
      }
    }
  }
}

TEST(CudaSparseTest, KeyBitsTellAllRowsAndTheOneBehindThemApart) {
  for (const int64_t num_rows :
       {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{255}, int64_t{256},
        int64_t{1} << 32, INT64_MAX}) {
    const int bits = gpu::NumKeyBits(num_rows);
    EXPECT_EQ(static_cast<uint64_t>(num_rows) >> bits, 0u) << num_rows;
    EXPECT_TRUE(bits == 1 ||
                (static_cast<uint64_t>(num_rows) >> (bits - 1)) == 1)
        << num_rows;
  }
}

}  // namespace
}  // namespace tf_syncrep
