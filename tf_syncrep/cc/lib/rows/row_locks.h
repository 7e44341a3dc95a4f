// Striped locks that make the update of one row of one table atomic.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_LOCKS_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_LOCKS_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/rows/row_hash.h"

namespace tf_syncrep {

// A fixed set of mutexes, shared by all tables of the process; a (table, row)
// pair always meets the same one. Two pairs may share a stripe, so a thread
// holds one stripe at a time and takes no other lock while it does.
class RowLocks {
 public:
  // The process-wide stripes.
  static RowLocks& Global();

  // The mutex of row `row` of the table whose storage begins at `table`. It
  // guards that row of the variable and of its moments.
  Mutex& Of(const void* table, int64_t row) {
    const uint64_t key = reinterpret_cast<uintptr_t>(table) / 64;
    return stripes_[HashRow(row + static_cast<int64_t>(key)) % kNumStripes].mu;
  }

 private:
  static constexpr uint64_t kNumStripes = 1024;

  // Each has a cache line of its own; otherwise neighbours would slow each
  // other down.
  struct alignas(64) Stripe {
    Mutex mu;
  };

  Stripe stripes_[kNumStripes];
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_LOCKS_H_
