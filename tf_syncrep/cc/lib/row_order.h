// Sorts the rows of sparse gradients.

#ifndef TF_SYNCREP_CC_LIB_ROW_ORDER_H_
#define TF_SYNCREP_CC_LIB_ROW_ORDER_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// One occurrence of a row, and the caller's note of where it is to be found.
struct RowOccurrence {
  int64_t row;
  uint64_t place;
};

// Sorts by row, which is never negative; occurrences of one row keep their
// order. A radix sort: linear in `size`. Uses both arrays, of `size` each, and
// returns the one that the result is in.
RowOccurrence* SortByRow(RowOccurrence* occurrences, RowOccurrence* spare,
                         int64_t size, Sharder& sharder);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROW_ORDER_H_
