// Striped locks that make the update of one row of one table atomic.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_LOCKS_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_LOCKS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/held_mutexes.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/rows/row_hash.h"

namespace tf_syncrep {

// A fixed set of mutexes, shared by all tables of the process; a (table, row)
// pair always meets the same one. Two pairs may share a stripe, so a thread
// that holds one waits for no other, and for no other lock.
class RowLocks {
 public:
  static RowLocks& Global() {
    // They are never destroyed, since pool threads may outlive static
    // destruction.
    static RowLocks* const locks = new RowLocks;
    return *locks;
  }

  // The mutex of row `row` of the table whose storage begins at `table`. It
  // guards that row of the variable and of its moments.
  Mutex& Of(const void* table, int64_t row) {
    const uint64_t key = reinterpret_cast<uintptr_t>(table) / 64;
    return stripes_[HashRow(row + static_cast<int64_t>(key)) % kNumStripes].mu;
  }

 private:
  // With 32 threads, each of which holds up to LockedRows::kMaxStripes, hardly
  // one in thirty is taken.
  static constexpr uint64_t kNumStripes = 8192;

  // Each has a cache line of its own; otherwise neighbours would slow each
  // other down.
  struct alignas(64) Stripe {
    Mutex mu;
  };

  Stripe stripes_[kNumStripes];
};

// Holds the stripes of some rows of one table during its lifetime.
class LockedRows {
 public:
  static constexpr int kMaxStripes = 8;

  explicit LockedRows(const void* table) : table_(table) {}

  // Locks another row, and returns whether it did. Waits for the first one
  // alone.
  bool Add(int64_t row) {
    Mutex& stripe = RowLocks::Global().Of(table_, row);
    return stripes_.Has(stripe) || stripes_.Add(stripe);
  }

 private:
  const void* const table_;
  HeldMutexes<kMaxStripes> stripes_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_LOCKS_H_
