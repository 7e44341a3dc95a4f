// Sorts the rows of sparse gradients, so that equal ones are next to each
// other.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/cpu_dispatch.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// One occurrence of a row, and the caller's note of where it is. Row is
// uint32_t, where that will do, or uint64_t: a sort spends its time on moving
// these.
template <typename Row>
struct RowOccurrence {
  Row row;
  Row place;
};

// Sorts by row; occurrences of one row keep their order. A radix sort: linear
// in `size`. Uses both arrays, of `size` each, and returns the one that the
// result is in; if they are sorted already, that is the first, and the second
// is not used. Null, and nothing has changed, when there is no memory for the
// counts.
template <typename Row>
RowOccurrence<Row>* SortByRow(RowOccurrence<Row>* occurrences,
                              RowOccurrence<Row>* spare, int64_t size,
                              Sharder& sharder);

// Of `size` sorted occurrences, calls `visit(begin, end)` for those of each row
// whose first one is in [from, to), in their order.
template <typename Row, typename Visit>
TF_SYNCREP_ALWAYS_INLINE void ForEachRow(const RowOccurrence<Row>* sorted,
                                         int64_t size, int64_t from, int64_t to,
                                         const Visit& visit) {
  int64_t begin = from;
  while (begin > 0 && begin < to &&
         sorted[begin].row == sorted[begin - 1].row) {
    ++begin;
  }
  while (begin < to) {
    int64_t end = begin + 1;
    while (end < size && sorted[end].row == sorted[begin].row) {
      ++end;
    }
    visit(begin, end);
    begin = end;
  }
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_
