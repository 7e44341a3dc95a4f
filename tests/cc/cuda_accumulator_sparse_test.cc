// Compares sparse sums in the GPU's memory, whose kernels are emulated on a
// CPU, with those in the host's memory: they must agree in every bit.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/cuda_emulation.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/cuda/accumulator_sparse_kernels.h"

namespace tf_syncrep {
namespace {

using cuda_emulation::Launch;
using gpu::kBlockThreads;

int num_sorts = 0;
int num_launches_of_lists = 0;

}  // namespace

GpuError UseGpu(int /*device*/) { return nullptr; }

GpuError CopyRowsOnGpu(const void* indices, bool is_int64, int64_t num_indices,
                       int64_t limit, int64_t* rows, GpuBadIndex* bad_index,
                       GpuStream /*stream*/) {
  *bad_index = {-1, -1};
  Launch(3, kBlockThreads, gpu::CopyRowsKernel,
         gpu::RowIndices{indices, is_int64, num_indices, limit}, rows,
         bad_index);
  Launch(1, 1, gpu::NameBadIndexKernel, rows, bad_index);
  return nullptr;
}

GpuError CopyOnGpu(const void* from, size_t bytes, void* to,
                   GpuStream /*stream*/) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
  return nullptr;
}

GpuError ReadFromGpu(const void* from, size_t bytes, void* to,
                     GpuStream /*stream*/) {
  std::memcpy(to, from, bytes);
  return nullptr;
}

namespace {

// The workspace of the emulated sort: arrays with an element for each
// occurrence, followed by the pieces.
struct Parts {
  explicit Parts(void* base, int64_t n)
      : rows(static_cast<uint64_t*>(base)),
        places(rows + n),
        begins(reinterpret_cast<int64_t*>(places + n)),
        pieces(begins + n) {}

  uint64_t* rows;
  uint64_t* places;
  int64_t* begins;
  void* pieces;
};

}  // namespace

template <typename T>
GpuError SortRowsWorkspaceBytes(const GpuSortedRows<T>& sorted, size_t* bytes) {
  *bytes = sorted.num_occurrences * 3 * sizeof(uint64_t) +
           sorted.num_pieces * sizeof(GpuRowsPiece<T>);
  return nullptr;
}

// The same as in accumulator_sparse.cu, with emulated kernels and other code in
// place of CUB.
template <typename T>
GpuError SortRowsOnGpu(const std::vector<GpuRowsPiece<T>>& pieces,
                       void* workspace, size_t /*workspace_bytes*/,
                       int64_t* num_rows, GpuSortedRows<T>* sorted,
                       GpuStream /*stream*/) {
  ++num_sorts;
  const int64_t n = sorted->num_occurrences;
  const Parts parts(workspace, n);
  auto* const table = static_cast<GpuRowsPiece<T>*>(parts.pieces);
  std::vector<uint64_t> rows(n);
  std::vector<uint64_t> places(n);
  int64_t num_listed = 0;
  for (auto batch = gpu::NextBatch<T>(pieces, {}); batch.num_pieces > 0;
       batch = gpu::NextBatch(pieces, batch)) {
    Launch(2, kBlockThreads, gpu::ListPiecesKernel<T>, batch, table,
           rows.data(), places.data());
    num_listed = batch.begins[batch.num_pieces];
    ++num_launches_of_lists;
  }
  EXPECT_EQ(num_listed, n);
  const uint64_t mask = (uint64_t{1} << sorted->num_key_bits) - 1;
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return (rows[a] & mask) < (rows[b] & mask);
  });
  for (int64_t i = 0; i < n; ++i) {
    parts.rows[i] = rows[order[i]];
    parts.places[i] = places[order[i]];
  }
  std::vector<uint8_t> is_begin(n);
  Launch(2, kBlockThreads, gpu::MarkBeginsKernel,
         static_cast<const uint64_t*>(parts.rows), n, is_begin.data());
  *num_rows = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (is_begin[i] != 0) {
      parts.begins[(*num_rows)++] = i;
    }
  }
  sorted->rows = parts.rows;
  sorted->places = parts.places;
  sorted->begins = parts.begins;
  sorted->pieces = table;
  return nullptr;
}

template <typename T>
GpuError ReduceRowsOnGpu(const GpuSortedRows<T>& sorted,
                         const GpuReducedRows<T>& reduced,
                         GpuStream /*stream*/) {
  constexpr int kWidth = gpu::kVectorWidth<T>;
  if (sorted.has_vectors) {
    EXPECT_EQ(sorted.row_size % kWidth, 0);
    Launch(3, kBlockThreads, gpu::ReduceRowsKernel<kWidth, T>, sorted, reduced,
           gpu::LanesPerRow(sorted.row_size, kWidth));
  } else {
    Launch(3, kBlockThreads, gpu::ReduceRowsKernel<1, T>, sorted, reduced,
           gpu::LanesPerRow(sorted.row_size, 1));
  }
  return nullptr;
}

namespace {

OwnedBuffer NewBytes(size_t bytes) {
  // The memory is uninitialised, so that sanitizers find reads of it.
  const std::shared_ptr<void> owner(
      ::operator new(bytes), [](void* memory) { ::operator delete(memory); });
  return {owner.get(), owner};
}

OwnedBuffer NoMemory(size_t /*bytes*/) { return {}; }

// Every second row is one of three, so that some occur more than 32 times.
template <typename T>
Gradient<T> RandomGradient(int64_t num_rows, int64_t row_size, int64_t limit,
                           uint32_t seed) {
  std::mt19937 random(seed);
  Gradient<T> gradient;
  for (int64_t i = 0; i < num_rows; ++i) {
    gradient.rows.push_back(random() % 2 == 0 ? random() % 3
                                              : random() % limit);
  }
  gradient.values = RandomValues<T>(num_rows * row_size, random);
  return gradient;
}

// Adds a gradient to both sums; the GPU's gets it with or without its owner.
template <typename T>
void AddToBoth(const Gradient<T>& gradient, int64_t row_size, bool is_ours,
               GpuSparseGradientSum<T>& on_gpu, SparseGradientSum<T>& on_cpu) {
  ThreadSharder sharder(1);
  const auto n = static_cast<int64_t>(gradient.rows.size());
  const OwnedBuffer rows = NewBytes(n * sizeof(int64_t));
  std::copy(gradient.rows.begin(), gradient.rows.end(),
            static_cast<int64_t*>(rows.data));
  OwnedBuffer values = NewBytes(gradient.values.size() * sizeof(T));
  std::copy(gradient.values.begin(), gradient.values.end(),
            static_cast<T*>(values.data));
  const OwnedBuffer given = {values.data, is_ours ? values.owner : nullptr};
  ASSERT_TRUE(on_gpu.Add(rows, n, row_size, given, NewBytes));
  ASSERT_TRUE(on_cpu.Add(ArrayOf(gradient.rows), row_size,
                         {values.data, nullptr}, sharder));
  if (!is_ours) {  // memory that the sums do not own must not be read later
    std::fill_n(static_cast<T*>(values.data), gradient.values.size(), T{});
  }
}

template <typename T>
void ExpectSameResult(GpuSparseGradientSum<T>& on_gpu,
                      SparseGradientSum<T>& on_cpu, int64_t row_size,
                      Reduction reduction, int64_t num_gradients) {
  ThreadSharder sharder(1);
  SparseResult expected;
  ASSERT_TRUE(on_cpu.Finish(reduction, num_gradients, sharder, &expected));
  int64_t num_rows = -1;
  ASSERT_TRUE(on_gpu.Sort(&num_rows, NewBytes));
  ASSERT_EQ(num_rows, expected.num_rows);
  std::vector<int64_t> rows(num_rows);
  std::vector<T> values(num_rows * row_size);
  on_gpu.WriteResult(reduction, num_gradients, num_rows, rows.data(),
                     values.data());
  EXPECT_EQ(on_gpu.error(), nullptr);
  const auto* const expected_rows =
      static_cast<const int64_t*>(expected.rows.data);
  EXPECT_EQ(rows,
            std::vector<int64_t>(expected_rows, expected_rows + num_rows));
  EXPECT_TRUE(values.empty() || std::memcmp(values.data(), expected.values.data,
                                            values.size() * sizeof(T)) == 0);
}

template <typename T>
class CudaSparseSumTest : public testing::Test {};
using AllTypes = testing::Types<Half, BFloat16, float, double>;
TYPED_TEST_SUITE(CudaSparseSumTest, AllTypes);

constexpr Reduction kReductions[] = {Reduction::kMean, Reduction::kSum,
                                     Reduction::kCountedMean};

TYPED_TEST(CudaSparseSumTest, ResultsHaveTheBitsOfTheCpu) {
  using T = TypeParam;
  // Each reduction has a row size; they include sizes with and without vectors.
  constexpr int64_t kRowSizes[] = {3, 72, 0};
  for (int i = 0; i < 3; ++i) {
    for (const int64_t limit : {int64_t{-1}, int64_t{400}}) {
      GpuSparseGradientSum<T> on_gpu({}, limit);
      SparseGradientSum<T> on_cpu(std::make_shared<SparseSumMemory>());
      for (uint32_t k = 0; k < 4; ++k) {
        const int64_t n = k == 2 ? 0 : 150 + 50 * k;
        AddToBoth(RandomGradient<T>(n, kRowSizes[i], 400, k), kRowSizes[i],
                  /*is_ours=*/k % 2 == 0, on_gpu, on_cpu);
      }
      ExpectSameResult(on_gpu, on_cpu, kRowSizes[i], kReductions[i], 4);
    }
  }
}

TYPED_TEST(CudaSparseSumTest, MergesOnTheWayChangeNoBitAndBoundMemory) {
  using T = TypeParam;
  for (const Reduction reduction :
       {Reduction::kMean, Reduction::kCountedMean}) {
    GpuSparseGradientSum<T> on_gpu({}, -1, /*min_merge_bytes=*/1);
    SparseGradientSum<T> on_cpu(std::make_shared<SparseSumMemory>());
    num_sorts = 0;
    int64_t num_pushed = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      AddToBoth(RandomGradient<T>(40, 8, 30, k), 8, k % 2 == 0, on_gpu, on_cpu);
      num_pushed += 40;
      // These are four times 30 distinct rows, and the last gradient.
      EXPECT_LE(on_gpu.num_held_rows(), 4 * 30 + 40);
    }
    EXPECT_GT(num_sorts, 2);
    EXPECT_LT(num_sorts, 6);
    EXPECT_LT(on_gpu.num_held_rows(), num_pushed);
    ExpectSameResult(on_gpu, on_cpu, 8, reduction, 8);
  }
}

TEST(CudaSparseSumOfFloatTest, ManySmallGradientsAreFewLaunchesAndAreMerged) {
  using GpuSum = GpuSparseGradientSum<float>;
  GpuSum on_gpu({}, 9);
  SparseGradientSum<float> on_cpu(std::make_shared<SparseSumMemory>());
  num_sorts = num_launches_of_lists = 0;
  const auto push = [&](uint32_t seed) {
    AddToBoth(RandomGradient<float>(1 + seed % 3, 2, 9, seed), 2, true, on_gpu,
              on_cpu);
  };
  for (uint32_t k = 0; k < 150; ++k) {
    push(k);
  }
  EXPECT_EQ(num_sorts, 0);
  ExpectSameResult(on_gpu, on_cpu, 2, Reduction::kMean, 150);
  EXPECT_EQ(num_launches_of_lists, 3);
  GpuSum many({}, 9);
  const OwnedBuffer rows = NewBytes(sizeof(int64_t));
  *static_cast<int64_t*>(rows.data) = 7;
  for (size_t k = 0; k < GpuSum::kMaxPieces; ++k) {
    ASSERT_TRUE(many.Add(rows, 1, 0, rows, NewBytes));
  }
  EXPECT_EQ(many.num_held_rows(), 1);
}

TEST(CudaSparseSumOfFloatTest, SumsShareABudgetOfMemory) {
  HeldBytesBudget budget(/*max_bytes=*/2000);
  const auto push = [](GpuSparseGradientSum<float>* sum) {
    const OwnedBuffer rows = NewBytes(10 * sizeof(int64_t));
    std::fill_n(static_cast<int64_t*>(rows.data), 10, int64_t{3});
    const OwnedBuffer values = NewBytes(10 * 4 * sizeof(float));
    std::fill_n(static_cast<float*>(values.data), 10 * 4, 1.0f);
    ASSERT_TRUE(sum->Add(rows, 10, 4, values, NewBytes));
  };
  GpuSparseGradientSum<float> sum({}, 9, int64_t{1} << 20, &budget);
  {
    GpuSparseGradientSum<float> other({}, 9, int64_t{1} << 20, &budget);
    for (int k = 0; k < 8; ++k) {
      push(&other);
    }
    EXPECT_EQ(budget.bytes(), 8 * 10 * (8 + 4 * 4));
    push(&sum);
    EXPECT_EQ(sum.num_held_rows(), 1);
    ThreadSharder sharder(1);
    sum.Merge(other, sharder);
    EXPECT_EQ(budget.bytes(), sum.held_bytes());
  }
  EXPECT_EQ(budget.bytes(), 81 * (8 + 4 * 4));
}

TYPED_TEST(CudaSparseSumTest, SumsOfTwoStepsAreMerged) {
  using T = TypeParam;
  const auto memory = std::make_shared<SparseSumMemory>();
  GpuSparseGradientSum<T> on_gpu({}, 50, /*min_merge_bytes=*/1);
  GpuSparseGradientSum<T> newer_on_gpu({}, 50);
  SparseGradientSum<T> on_cpu(memory);
  SparseGradientSum<T> newer_on_cpu(memory);
  for (uint32_t k = 0; k < 3; ++k) {
    AddToBoth(RandomGradient<T>(40, 5, 50, k), 5, true, on_gpu, on_cpu);
  }
  AddToBoth(RandomGradient<T>(25, 5, 50, 9), 5, false, newer_on_gpu,
            newer_on_cpu);
  ThreadSharder sharder(1);
  on_gpu.Merge(newer_on_gpu, sharder);
  on_cpu.Merge(newer_on_cpu, sharder);
  ExpectSameResult(on_gpu, on_cpu, 5, Reduction::kMean, 4);
}

TEST(CudaSparseSumOfFloatTest, TheFirstBadIndexIsNamed) {
  for (const int64_t limit : {int64_t{1000}, int64_t{-1}}) {
    std::vector<int32_t> indices(3000);
    std::vector<int64_t> rows(3000);
    GpuBadIndex found;
    indices[2999] = 999;
    CopyRowsOnGpu(indices.data(), false, 3000, limit, rows.data(), &found,
                  nullptr);
    EXPECT_EQ(found.position, -1);
    EXPECT_EQ(rows[2999], 999);
    indices[2100] = -5;
    indices[1700] = 1000;
    CopyRowsOnGpu(indices.data(), false, 3000, limit, rows.data(), &found,
                  nullptr);
    EXPECT_EQ(found.position, limit < 0 ? 2100 : 1700);
    EXPECT_EQ(found.index, limit < 0 ? -5 : 1000);
  }
}

TEST(CudaSparseSumOfFloatTest, WithoutMemoryNothingChanges) {
  GpuSparseGradientSum<float> on_gpu({}, 9, /*min_merge_bytes=*/1);
  SparseGradientSum<float> on_cpu(std::make_shared<SparseSumMemory>());
  const Gradient<float> gradient = RandomGradient<float>(20, 4, 9, 1);
  AddToBoth(gradient, 4, true, on_gpu, on_cpu);
  const int64_t num_held = on_gpu.num_held_rows();
  const OwnedBuffer rows = NewBytes(20 * sizeof(int64_t));
  std::copy(gradient.rows.begin(), gradient.rows.end(),
            static_cast<int64_t*>(rows.data));
  std::vector<float> values = gradient.values;
  EXPECT_FALSE(on_gpu.Add(rows, 20, 4, {values.data(), nullptr}, NoMemory));
  EXPECT_EQ(on_gpu.num_held_rows(), num_held);
  // Without memory, a merge is postponed.
  EXPECT_TRUE(on_gpu.Add(rows, 20, 4, {values.data(), std::make_shared<int>(0)},
                         NoMemory));
  EXPECT_EQ(on_gpu.num_held_rows(), num_held + 20);
  ThreadSharder sharder(1);
  ASSERT_TRUE(
      on_cpu.Add(ArrayOf(gradient.rows), 4, {values.data(), nullptr}, sharder));
  ExpectSameResult(on_gpu, on_cpu, 4, Reduction::kMean, 2);
}

}  // namespace
}  // namespace tf_syncrep
