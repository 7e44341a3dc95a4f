// Rows for tests, in the forms that cc/lib takes.

#ifndef TF_SYNCREP_TESTS_CC_ROW_ARRAYS_H_
#define TF_SYNCREP_TESTS_CC_ROW_ARRAYS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/thread_sharder.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/rows/row_groups.h"

namespace tf_syncrep {

inline Array<int64_t> ArrayOf(const std::vector<int64_t>& rows) {
  Array<int64_t> array;
  EXPECT_TRUE(array.Allocate(static_cast<int64_t>(rows.size())));
  std::copy(rows.begin(), rows.end(), array.begin());
  return array;
}

// Groups rows of a table of `num_rows` rows; rows outside it are ignored.
inline RowGroups GroupsOf(
    const std::vector<int64_t>& rows,
    int64_t num_rows = std::numeric_limits<uint32_t>::max()) {
  RowGroups groups;
  ThreadSharder sharder(1);
  BadRow bad_row;
  EXPECT_EQ(
      groups.Find(rows.data(), static_cast<int64_t>(rows.size()), num_rows,
                  RowGroups::BadRows::kIgnored, sharder, &bad_row),
      RowGroups::Status::kOk);
  return groups;
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_TESTS_CC_ROW_ARRAYS_H_
