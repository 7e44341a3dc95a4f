// Finds the occurrences of each row in the indices of a sparse gradient.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_

#include <cstdint>

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

  // Groups `size` indices into a table of `num_rows` rows. Each is read once,
  // since others may change it meanwhile. With kBadRow, `bad_row` is the first
  // bad index.
  //
  // Takes time linear in `size`. Ascending indices are recognised in the same
  // pass, and then nothing is sorted.
  template <typename Index>
  Status Find(const Index* indices, int64_t size, int64_t num_rows,
              BadRows bad_rows, Sharder& sharder, BadRow* bad_row);

  // The number of positions of all rows.
  int64_t size() const { return is_narrow_ ? narrow_.size : wide_.size; }

  // Returns visit(sorted, size()), for an array of RowOccurrence<uint32_t> or
  // <uint64_t>, whose places are the positions.
  template <typename Visitor>
  auto Visit(const Visitor& visit) const {
    return is_narrow_ ? visit(narrow_.sorted, narrow_.size)
                      : visit(wide_.sorted, wide_.size);
  }

 private:
  template <typename Row>
  struct Occurrences {
    template <typename Index>
    Status Find(const Index* indices, int64_t num, int64_t num_rows,
                BadRows bad_rows, Sharder& sharder, BadRow* bad_row);

    Array<RowOccurrence<Row>> memory;
    Array<RowOccurrence<Row>> spare;
    const RowOccurrence<Row>* sorted = nullptr;  // in one of the two arrays
    int64_t size = 0;
  };

  bool is_narrow_ = true;  // whether narrow_ is used, or else wide_
  Occurrences<uint32_t> narrow_;
  Occurrences<uint64_t> wide_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_
