// The budget of memory for gradients that are held unmerged.

#include "tf_syncrep/cc/lib/held_bytes.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/random_gradients.h"
#include "tests/cc/row_arrays.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/accumulator_sparse.h"

namespace tf_syncrep {
namespace {

using Sum = SparseGradientSum<float>;

TEST(HeldBytesTest, HoldersOfAllThreadsAddUpAndGiveBack) {
  HeldBytesBudget budget(1000);
  HeldBytes rest(&budget);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      HeldBytes held(&budget);
      for (int64_t bytes = 0; bytes < 10000; ++bytes) {
        held.Set(bytes % 77);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(budget.bytes(), 0);
  rest.Set(1000);
  EXPECT_FALSE(budget.is_exceeded());
  rest.Set(1001);
  EXPECT_TRUE(budget.is_exceeded());
}

TEST(HeldBytesTest, ManySumsHoldNoMoreThanTheBudgetAndWhatTheyMerge) {
  constexpr int64_t kBudget = 1 << 20;
  constexpr int64_t kRows = 500;
  constexpr int64_t kRowSize = 8;
  constexpr int kSums = 40;
  constexpr int kPushes = 30;
  HeldBytesBudget budget(kBudget);
  ThreadSharder sharder(1);
  std::vector<std::unique_ptr<Sum>> sums;
  for (int i = 0; i < kSums; ++i) {
    sums.push_back(
        std::make_unique<Sum>(std::make_shared<SparseSumMemory>(&budget)));
  }
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < kRows; ++row) {
    rows.push_back(row);
  }
  std::vector<float> ones(kRows * kRowSize, 1);
  // After a merge a sum holds at most four times as many rows, and the next
  // push.
  constexpr int64_t kMostOfSum = 5 * (kRows * (kRowSize * 4 + 12) + 1000);
  int64_t most = 0;
  for (int push = 0; push < kPushes; ++push) {
    for (const auto& sum : sums) {
      ASSERT_TRUE(
          sum->Add(ArrayOf(rows), kRowSize, {ones.data(), nullptr}, sharder));
      most = std::max(most, budget.bytes());
    }
  }
  EXPECT_GT(most, kBudget);
  EXPECT_LE(most, kBudget + kSums * kMostOfSum);
  // This is how much they would hold without a budget.
  EXPECT_GT(kSums * kPushes * kRows * kRowSize * 4, 2 * most);
  for (const auto& sum : sums) {
    SparseResult result;
    ASSERT_TRUE(sum->Finish(Reduction::kMean, kPushes, sharder, &result));
    ASSERT_EQ(result.num_rows, kRows);
    const auto* const values = static_cast<const float*>(result.values.data);
    for (int64_t i = 0; i < kRows * kRowSize; ++i) {
      ASSERT_EQ(values[i], 1);
    }
  }
  sums.clear();
  EXPECT_EQ(budget.bytes(), 0);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(HeldBytesTest, GradientOfOneRowCountsWhatItTakesOfTheHeap) {
  constexpr int64_t kPushes = 50000;
  HeldBytesBudget budget(int64_t{1} << 40);
  ThreadSharder sharder(1);
  std::vector<float> one(1, 1);
  for (const bool is_ours : {false, true}) {
    Sum sum(std::make_shared<SparseSumMemory>(&budget));
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (int64_t i = 0; i < kPushes; ++i) {
      const OwnedBuffer values =
          is_ours ? NewBuffer<float>(1) : OwnedBuffer{one.data(), nullptr};
      ASSERT_TRUE(sum.Add(ArrayOf({i}), 1, values, sharder));
    }
    const auto taken =
        static_cast<double>(mallinfo2().uordblks + mallinfo2().hblkhd - before);
    EXPECT_GT(static_cast<double>(sum.held_bytes()), taken * 0.7);
    if (!is_ours) {  // a vector has less overhead than a tensor
      EXPECT_LT(static_cast<double>(sum.held_bytes()), taken * 2);
    }
  }
}
#endif

}  // namespace
}  // namespace tf_syncrep
