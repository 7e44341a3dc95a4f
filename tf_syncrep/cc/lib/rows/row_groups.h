// Finds the occurrences of each row in the indices of a sparse gradient.

#ifndef TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_
#define TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_

#include <cstdint>
#include <vector>

namespace tf_syncrep {

// All occurrences of one row, a linked list through the positions of the
// gradient, in order.
struct RowGroup {
  int64_t row;
  int64_t first;  // position of the first occurrence
  int64_t last;   // position of the last one
};

// Groups those of the `num_rows` numbers in `rows` that fall into shard `shard`
// of `num_shards`; equal rows always fall into the same shard. Groups are in
// order of their first occurrence.
//
// For each position that is not the last of its group, next[position] is set to
// the group's next position; other entries are left alone, so that the shards
// of one gradient can share one array of `num_rows` entries.
//
// Takes O(num_rows) time and memory proportional to the shard's share.
std::vector<RowGroup> GroupRows(const int64_t* rows, int64_t num_rows,
                                int64_t shard, int64_t num_shards,
                                int64_t* next);

// Whether rows ascend and none occurs twice, as where somebody else has grouped
// them: each is then a group of its own.
bool AreDistinctAndAscending(const int64_t* rows, int64_t num_rows);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_LIB_ROWS_ROW_GROUPS_H_
