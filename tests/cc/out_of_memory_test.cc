// Allocations as large as a user's data may fail: the process does not end, and
// nothing has changed.
//
// Each large allocation of a piece of work fails once. Exceptions would not be
// caught, so they would end the process.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"
#include "tf_syncrep/cc/lib/chunk_pool.h"
#include "tf_syncrep/cc/lib/rows/distinct_rows.h"
#include "tf_syncrep/cc/lib/rows/row_combine.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"
#include "tf_syncrep/cc/lib/rows/row_snapshot.h"
#include "tf_syncrep/cc/lib/table/dynamic_table.h"
#include "tf_syncrep/cc/lib/table/key_requests.h"

namespace {

constexpr size_t kLarge = 16 << 10;
// Allocations of fewer bytes succeed.
size_t large_bytes = kLarge;
// How many large allocations succeed before one fails; negative if none fails.
int64_t allocations_left = -1;
int64_t num_failed = 0;

bool Fails(size_t bytes) {
  if (bytes < large_bytes || allocations_left < 0 || allocations_left-- > 0) {
    return false;
  }
  ++num_failed;
  return true;
}

}  // namespace

// Replaces the library's operators in the whole program.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Fails(bytes) ? nullptr : std::malloc(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return Fails(bytes) ? nullptr : std::malloc(bytes);
}
void* operator new(size_t bytes) {
  void* const data = Fails(bytes) ? nullptr : std::malloc(bytes);
  if (data == nullptr) {
    throw std::bad_alloc();
  }
  return data;
}
void* operator new[](size_t bytes) { return ::operator new(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  void* data = nullptr;
  if (Fails(bytes) || posix_memalign(&data, alignment, bytes) != 0) {
    return nullptr;
  }
  return data;
}

namespace tf_syncrep {
namespace {

constexpr int64_t kRows = 20000;
constexpr int64_t kRowSize = 4;

// Calls `work`, which returns whether it had memory, until it has. The first
// large allocation fails in the first call, the second one in the second call,
// and so on. Returns how often it had none.
int64_t FailEachAllocation(const std::function<bool()>& work) {
  for (int64_t i = 0;; ++i) {
    num_failed = 0;
    allocations_left = i;
    const bool had_memory = work();
    allocations_left = -1;
    // It may have tried to manage with less.
    EXPECT_TRUE(had_memory || num_failed > 0) << "allocation " << i;
    if (had_memory || num_failed == 0) {
      return i;
    }
  }
}

std::vector<int64_t> SomeRows(int64_t range) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < kRows; ++i) {
    rows.push_back(i * 7919 % range);
  }
  return rows;
}

TEST(OutOfMemoryTest, ChunksAreFreedOrComeBack) {
  const auto pool = std::make_shared<ChunkPool>();
  large_bytes = 1;
  num_failed = 0;
  allocations_left = 1;  // That of the memory itself succeeds.
  const bool has_owner = ChunkPool::Get(pool, 1).buffer.owner != nullptr;
  allocations_left = -1;
  EXPECT_FALSE(has_owner);
  EXPECT_EQ(num_failed, 1);
  const size_t one = pool->kept_bytes();
  EXPECT_GT(one, 0u);
  // There is no room to remember the second one that is not used any more.
  std::vector<Chunk> chunks = {ChunkPool::Get(pool, 1),
                               ChunkPool::Get(pool, 1)};
  allocations_left = 0;
  chunks.clear();
  allocations_left = -1;
  large_bytes = kLarge;
  EXPECT_EQ(num_failed, 2);
  EXPECT_EQ(pool->kept_bytes(), one);
}

TEST(OutOfMemoryTest, ChunksThatAreTooManyAreFreed) {
  const auto pool = std::make_shared<ChunkPool>();
  constexpr size_t kBytes = 1 << 20;
  {
    const Chunk one = ChunkPool::Get(pool, kBytes);
    const Chunk other = ChunkPool::Get(pool, kBytes);
  }
  EXPECT_GE(pool->kept_bytes(), 2 * kBytes);
  large_bytes = 1;
  allocations_left = 0;
  pool->EndRound(1);
  allocations_left = -1;
  large_bytes = kLarge;
  EXPECT_LT(pool->kept_bytes(), kBytes);
}

TEST(OutOfMemoryTest, RowsAreNotGrouped) {
  // For a large table the sort counts 2^11 digits.
  for (const auto& [table_rows, num_allocations] :
       {std::pair<int64_t, int64_t>{5000, 2}, {int64_t{1} << 22, 3}}) {
    const std::vector<int64_t> indices = SomeRows(table_rows);
    ThreadSharder sharder(1);
    const auto group = [&, num_rows = table_rows] {
      RowGroups groups;
      BadRow bad_row;
      return groups.Find(indices.data(), kRows, num_rows,
                         RowGroups::BadRows::kRefused, sharder,
                         &bad_row) == RowGroups::Status::kOk;
    };
    EXPECT_EQ(FailEachAllocation(group), num_allocations);
  }
}

TEST(OutOfMemoryTest, GradientsAreNotAddedAndCanBeAfterwards) {
  const std::vector<int64_t> indices = SomeRows(kRows);
  const std::vector<float> ones(kRows * kRowSize, 1);
  ThreadSharder sharder(1);
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>());
  for (int i = 0; i < 3; ++i) {
    EXPECT_GE(FailEachAllocation([&] {
                Array<int64_t> rows;
                return rows.Allocate(kRows) &&
                       (std::copy(indices.begin(), indices.end(), rows.begin()),
                        true) &&
                       sum.Add(std::move(rows), kRowSize,
                               {const_cast<float*>(ones.data()), nullptr},
                               sharder);
              }),
              1);
    EXPECT_EQ(sum.num_held_rows(), (i + 1) * kRows);
  }
  SparseResult result;
  EXPECT_GE(FailEachAllocation([&] {
              return sum.Finish(Reduction::kSum, 3, sharder, &result);
            }),
            2);
  ASSERT_EQ(result.num_rows, kRows);
  const auto* const values = static_cast<const float*>(result.values.data);
  for (int64_t i = 0; i < kRows * kRowSize; ++i) {
    ASSERT_EQ(values[i], 3);
  }
}

TEST(OutOfMemoryTest, GradientsThatCannotBeMergedStayAsTheyAre) {
  const std::vector<int64_t> indices = SomeRows(2500);
  const std::vector<float> ones(kRows * kRowSize, 1);
  ThreadSharder sharder(1);
  // It merges as often as possible.
  SparseGradientSum<float> sum(std::make_shared<SparseSumMemory>(),
                               BestCpuLevel(), /*min_merge_bytes=*/0);
  int64_t num_added = 0;
  for (int64_t left = 0; left < 12; ++left) {
    Array<int64_t> rows = ArrayOf(indices);
    allocations_left = left;
    num_added += sum.Add(std::move(rows), kRowSize,
                         {const_cast<float*>(ones.data()), nullptr}, sharder);
    allocations_left = -1;
  }
  ASSERT_GT(num_added, 8);
  SparseResult result;
  ASSERT_TRUE(sum.Finish(Reduction::kSum, num_added, sharder, &result));
  ASSERT_EQ(result.num_rows, 2500);
  const auto* const values = static_cast<const float*>(result.values.data);
  for (int64_t i = 0; i < 2500 * kRowSize; ++i) {
    ASSERT_EQ(values[i], static_cast<float>(num_added * kRows / 2500));
  }
}

TEST(OutOfMemoryTest, IdsAreNotFound) {
  const std::vector<int64_t> ids = SomeRows(6000);
  ThreadSharder sharder(1);
  const std::vector<FeatureIds> features = {
      {nullptr, ids.data(), kRows, 0, 6000}};
  const RowPartition partition = RowPartition::Modulo(6000, 2);
  EXPECT_EQ(FailEachAllocation([&] {
              DistinctRows rows;
              BadId bad_id;
              return rows.Find(features, partition, sharder, &bad_id) ==
                     DistinctRows::Status::kOk;
            }),
            4);
}

TEST(OutOfMemoryTest, RowsAreNotCombined) {
  std::vector<int32_t> places;
  for (int64_t i = 0; i < kRows; ++i) {
    places.push_back(static_cast<int32_t>(i * 7919 % kRows));
  }
  std::vector<Half> rows(kRows * kRowSize);
  std::vector<float> results(kRows * kRowSize);
  const std::vector<CombinedFeature> features = {
      {Combiner::kNone, places.data(), kRows, kRows, 1, nullptr, nullptr}};
  ThreadSharder sharder(2);
  bool has_memory = false;
  EXPECT_EQ(FailEachAllocation([&] {
              return CombineRows<Half>({{rows.data(), kRows}}, kRowSize,
                                       features, {results.data()}, sharder,
                                       &has_memory);
            }),
            1);
  ThreadSharder one(1);
  EXPECT_EQ(FailEachAllocation([&] {
              return CombineRowsGradient<Half>({{rows.data(), kRows}}, kRowSize,
                                               features, {results.data()}, one,
                                               &has_memory);
            }),
            3);
}

TEST(OutOfMemoryTest, SnapshotForWhichNothingCanBeKeptIsGivenUp) {
  constexpr int64_t kWideRows = 100;
  const std::vector<char> table(kWideRows * kLarge, 'a');
  std::vector<int64_t> all;
  for (int64_t i = 0; i < kWideRows; ++i) {
    all.push_back(i);
  }
  for (const bool is_range : {false, true}) {
    KeptBytes kept(int64_t{1} << 30, std::chrono::seconds(60));
    RowSnapshot snapshot(kWideRows, {kLarge}, &kept);
    allocations_left = 0;
    EXPECT_EQ(snapshot.Keep({table.data()}, is_range ? nullptr : all.data(), 0,
                            kWideRows),
              kWideRows);
    allocations_left = -1;
    EXPECT_EQ(kept.gave_up(), KeptBytes::Reason::kOutOfMemory);
    EXPECT_TRUE(snapshot.IsRead());
    EXPECT_TRUE(kept.TryAdd(int64_t{1} << 30));  // nothing else is
  }
}

TEST(OutOfMemoryTest, KeysAreNotAskedFor) {
  const std::vector<int64_t> ids = SomeRows(6000);
  ThreadSharder sharder(1);
  EXPECT_GE(FailEachAllocation([&] {
              KeyRequests requests;
              return requests.Find({{nullptr, ids.data(), kRows, 0}}, 1, 2,
                                   sharder);
            }),
            4);
}

TEST(OutOfMemoryTest, KeysGetNoRowsAndCanAfterwards) {
  constexpr int64_t kCapacity = 20 * kRows;
  std::vector<int64_t> key_column(kCapacity);
  std::vector<uint64_t> use_column(kCapacity);
  const TableColumns columns(key_column.data(), use_column.data());
  const DynamicTable::Options options = {0, kCapacity, /*min_count=*/1};
  DynamicTable table(options);
  ThreadSharder sharder(1);
  std::vector<int64_t> keys(kRows);
  std::vector<int64_t> new_keys(kRows);
  std::vector<int32_t> rows(kRows);
  std::vector<int32_t> free_rows(kRows);
  int64_t num_failed_steps = 0;
  bool has_memory;
  // This goes on until the table is full enough for an eviction.
  for (int64_t end = kRows; end <= kCapacity; end += kRows) {
    for (int64_t i = 0; i < kRows; ++i) {
      keys[i] = end - i;
    }
    num_failed_steps += FailEachAllocation([&] {
      table.FindAndUse(columns, 0, keys.data(), kRows, rows.data(), sharder,
                       &has_memory);
      if (!has_memory) {
        return false;
      }
      int64_t num_new = 0;
      for (int64_t i = 0; i < kRows; ++i) {
        if (rows[i] == DynamicTable::kAdmitted) {
          new_keys[num_new++] = keys[i];
        }
      }
      const int64_t taken = table.TakeFree(num_new, free_rows.data());
      if (taken < 0) {
        return false;
      }
      EXPECT_EQ(taken, num_new);
      table.Add(columns, key_column.data(), new_keys.data(), taken, {0, 1},
                free_rows.data(), rows.data(), sharder, &has_memory);
      return has_memory;
    });
    ASSERT_EQ(table.counts().in_use, end);
  }
  EXPECT_GE(num_failed_steps, 4 * 20);
  EXPECT_EQ(FailEachAllocation([&] {
              DynamicTable::Eviction eviction;
              return table.PlanEviction(
                  columns, 0, 0, DynamicTable::Order::kLeastRecent, &eviction);
            }),
            1);
  DynamicTable rebuilt(options);
  EXPECT_GE(FailEachAllocation([&] {
              int64_t bad_row;
              return rebuilt.Build(columns, sharder, &bad_row) ==
                     DynamicTable::BuildStatus::kOk;
            }),
            2);
  EXPECT_EQ(rebuilt.counts().in_use, kCapacity);
  rebuilt.Find(columns, keys.data(), kRows, rows.data(), sharder, &has_memory);
  EXPECT_EQ(key_column[rows[7]], keys[7]);
}

}  // namespace
}  // namespace tf_syncrep
