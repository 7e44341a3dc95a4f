// Copies rows out of a table.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_GATHER_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_GATHER_H_

#include <cstdint>

#include "tf_syncrep/cc/lib/float16.h"
#include "tf_syncrep/cc/lib/sharder.h"

namespace tf_syncrep {

// What becomes of a row number of -1.
enum class MissingRows : uint8_t { kRefused, kZeros };

// Sets row i of `result` to row rows[i] of `table`, both `width` wide, rounded
// to Out, which is T or, for float, a 16-bit type. Returns the first i for
// which rows[i] is neither in [0, num_rows) nor a missing row that `missing`
// allows, or -1 if there is none.
template <typename T, typename Out, typename Row>
int64_t GatherRows(const T* table, int64_t num_rows, int64_t width,
                   const Row* rows, int64_t size, MissingRows missing,
                   Out* result, Sharder& sharder);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_GATHER_H_
