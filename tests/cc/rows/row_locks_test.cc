// LockedRows: several rows are locked at a time, and nobody waits for ever.

#include "tf_syncrep/cc/lib/rows/row_locks.h"

#include <cstdint>
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

}  // namespace
}  // namespace tf_syncrep
