// Finds the occurrences of each row in the indices of a sparse gradient.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_

#include <cstdint>
#include <limits>

#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// What is wrong with an index.
struct BadRow {
  int64_t position = 0;
  int64_t row = 0;
};

// The rows of a table that indices name, ascending, and for each row its
// positions in the indices, in order.
class RowGroups {
 public:
  enum class Status { kOk, kBadRow, kOutOfMemory };

  // What becomes of an index that is not a row of the table.
  enum class BadRows { kRefused, kIgnored };

  // Both `size` and the number of a table's rows.
  static constexpr int64_t kMax = std::numeric_limits<uint32_t>::max();

  // Groups `size` indices into a table of `num_rows` rows. Each is read once,
  // since others may change it meanwhile. With kBadRow, `bad_row` is the first
  // bad index.
  //
  // Takes time linear in `size`. Ascending indices are recognised in the same
  // pass, and then nothing is sorted.
  template <typename Index>
  Status Find(const Index* indices, int64_t size, int64_t num_rows,
              BadRows bad_rows, Sharder& sharder, BadRow* bad_row);

  // The occurrences by row, whose places are the positions.
  const RowOccurrence<uint32_t>* sorted() const { return sorted_; }

  int64_t size() const { return size_; }

 private:
  Array<RowOccurrence<uint32_t>> memory_;
  Array<RowOccurrence<uint32_t>> spare_;
  // In one of the two arrays.
  const RowOccurrence<uint32_t>* sorted_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_
