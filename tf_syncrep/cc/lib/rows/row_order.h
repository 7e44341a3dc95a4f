// Sorts the rows of sparse gradients.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// One occurrence of a row, and the caller's note of where it is to be found.
// Row is uint32_t, where that will do, or uint64_t: what a sort takes is to
// move these.
template <typename Row>
struct RowOccurrence {
  Row row;
  Row place;
};

// Sorts by row; occurrences of one row keep their order. A radix sort: linear
// in `size`. Uses both arrays, of `size` each, and returns the one that the
// result is in.
template <typename Row>
RowOccurrence<Row>* SortByRow(RowOccurrence<Row>* occurrences,
                              RowOccurrence<Row>* spare, int64_t size,
                              Sharder& sharder);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_ORDER_H_
