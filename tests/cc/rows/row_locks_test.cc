// LockedRows: several rows are locked at a time, and nobody waits for ever.

#include "tf_syncrep/cc/lib/rows/row_locks.h"

#include <cstdint>
#include <future>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tf_syncrep/cc/lib/mutex.h"

namespace tf_syncrep {
namespace {

// The locks know a table by its address alone.
alignas(64) char table[64];

Mutex& StripeOf(int64_t row) { return RowLocks::Global().Of(table, row); }

// Whether another thread could lock the row now.
bool IsFree(int64_t row) TF_SYNCREP_UNCHECKED_LOCKS {
  bool is_free = false;
  std::thread([&]() TF_SYNCREP_UNCHECKED_LOCKS {
    is_free = StripeOf(row).try_lock();
    if (is_free) {
      StripeOf(row).unlock();
    }
  }).join();
  return is_free;
}

// Returns a row above `row` that shares its stripe, or that does not.
int64_t RowAfter(int64_t row, bool shares_stripe) {
  int64_t other = row + 1;
  while ((&StripeOf(other) == &StripeOf(row)) != shares_stripe) {
    ++other;
  }
  return other;
}

TEST(LockedRowsTest, AllAddedRowsAreLockedUntilTheEnd) {
  const int64_t other = RowAfter(5, /*shares_stripe=*/false);
  {
    LockedRows locked(table);
    EXPECT_TRUE(IsFree(5));
    EXPECT_TRUE(locked.Add(5));
    EXPECT_TRUE(locked.Add(other));
    EXPECT_FALSE(IsFree(5));
    EXPECT_FALSE(IsFree(other));
  }
  EXPECT_TRUE(IsFree(5));
  EXPECT_TRUE(IsFree(other));
}

TEST(LockedRowsTest, RowsMayShareAStripe) {
  const int64_t other = RowAfter(5, /*shares_stripe=*/true);
  {
    LockedRows locked(table);
    EXPECT_TRUE(locked.Add(5));
    EXPECT_TRUE(locked.Add(other));
    EXPECT_TRUE(locked.Add(5));
  }
  EXPECT_TRUE(IsFree(5));
}

TEST(LockedRowsTest, WhoHoldsARowWaitsForNoOther) {
  const int64_t other = RowAfter(5, /*shares_stripe=*/false);
  LockedRows theirs(table);
  ASSERT_TRUE(theirs.Add(other));
  bool added = true;
  std::thread([&] {
    LockedRows ours(table);
    ASSERT_TRUE(ours.Add(5));
    added = ours.Add(other);
  }).join();
  EXPECT_FALSE(added);
}

// The share of a thread's batches of rows that are cut short, since a row of
// them is taken, while all other threads hold as many rows as they may.
double ShareOfBrokenBatches(int num_threads) {
  constexpr int kNumBatches = 2000;
  std::mt19937_64 random(1);
  std::set<Mutex*> taken;
  const auto free_row = [&] {
    while (true) {
      const auto row = static_cast<int64_t>(random() >> 20);
      if (taken.count(&StripeOf(row)) == 0) {
        return row;
      }
    }
  };
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> holders;
  for (int i = 1; i < num_threads; ++i) {
    std::promise<void> holds;
    std::vector<int64_t> rows;
    while (rows.size() < LockedRows::kMaxStripes) {
      rows.push_back(free_row());
      taken.insert(&StripeOf(rows.back()));
    }
    holders.emplace_back([rows, ended, &holds] {
      LockedRows locked(table);
      for (const int64_t row : rows) {
        EXPECT_TRUE(locked.Add(row));
      }
      holds.set_value();
      ended.wait();
    });
    holds.get_future().wait();
  }
  int broken = 0;
  for (int batch = 0; batch < kNumBatches; ++batch) {
    LockedRows locked(table);
    bool is_whole = locked.Add(free_row());  // for the first one a thread waits
    for (int i = 1; i < LockedRows::kMaxStripes && is_whole; ++i) {
      is_whole = locked.Add(static_cast<int64_t>(random() >> 20));
    }
    broken += is_whole ? 0 : 1;
  }
  end.set_value();
  for (std::thread& holder : holders) {
    holder.join();
  }
  return static_cast<double>(broken) / kNumBatches;
}

TEST(LockedRowsTest, MostBatchesOfManyThreadsAreWhole) {
  EXPECT_LT(ShareOfBrokenBatches(16), 0.15);
  EXPECT_LT(ShareOfBrokenBatches(32), 0.28);
}

}  // namespace
}  // namespace tf_syncrep
